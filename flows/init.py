"""Writes a study file for a model and pairs, with comments and what it will take."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from dynolab.costs.machines import UNTIMED_SECONDS, duration, this_machine
from dynolab.data.encode import Encoder
from dynolab.data.rows import first_pairs
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData, load_data
from dynolab.data.unknown import UnknownTokens, about_loaders, in_words, unknown_tokens
from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit
from flows.costs import PlannedCosts
from flows.parameters.parse import parse_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from models.language import context_length, load_language_model, load_tokenizer
from tasks.data import file_for_model
from tasks.shared.cost_inputs import some_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH, MICRO = 8, 4
SHORTEST, LONGEST = 20, 200  # steps of a training; between them it is one pass over the rows
WARMUP = 5  # a fifth of the steps
PROBES, PROBE_SHARE, MOST_WATCHED = 4, 0.15, 20  # of a training; pairs of each split at most
SMALL_MODEL = 10**8  # weights; below, rates are those of small models

TEMPLATE = """\
# {model} on {data}: {rows}.
{sizes}
#
#   {program} study {file}    runs it; --plan shows what would run, --show all settings
#
{time}
name: {name}

data:
  source: file
  path: {data}  # from this file's folder
{format}{replace}  probe_pairs: {watched}
  # heldout_rows: 20    never trained on; default: a tenth of the rows, at most 100

base:
  source: {model}  # a folder, or a Hub name

# Answers that are watched; leave this out for all six kinds (unrelated and random ones, too).
probe_set: {{kinds: [chosen, rejected]}}

# Finetuning on the chosen answers, which moves every answer before the preference training begins.
# A model that is finetuned already needs none: `sft: null` in place of this part.
sft:
  optimizer: {{name: adamw, learning_rate: {sft_rate}}}
  engine: {{kind: plain, ranks: 1}}  # deepspeed: several processes or GPUs
  steps: {steps}
  batch_size: {batch}
  micro_batch_size: {micro}
  overlong: {overlong}  # rows beyond the context: error, drop, truncate_left, keep_start, keep_end
  probe_every: {probe_every}
  # record_steps: {record_steps}    takes these steps apart, as below

preference:
  objective: {{name: dpo, beta: 0.1}}
  optimizer: {{name: adamw, learning_rate: {preference_rate}}}
  engine: {{kind: plain, ranks: 1}}
  steps: {steps}
  warmup_steps: {warmup}  # without it Adam's first steps are as long as any, from one batch each
  batch_size: {batch}
  micro_batch_size: {micro}
  overlong: {overlong}
  probe_every: {probe_every}
  record_steps: {record_steps}  # these steps are analysed, and `explore` maps them

# Who pulled which answer down, over all steps: means of 4 pairs, and the answers that fell most,
# token by token. slopes_every: 1 is exact and takes half as long again; at 3 most entries are off
# by 1 % or less. token_map: true also maps the hardest pull in full, in the time of four steps.
ledger: {{pairs: 4, answers: 5, heldout_answers: 3, slopes_every: 3}}

# Of the recorded steps: how well first order predicts what they did; a map of the strongest push.
forces: {{pairs: 2}}

# Not needed to see which pairs and tokens pull answers down. To add one, delete its line.
audit: null      # what one step would do, for every pair, before any training
squeezing: null  # where the probability went
kernel: null     # how strongly answers are coupled; of these it takes longest: see --plan
"""


def settings_for(loaded: LoadedData, sizes: Sizes) -> dict[str, Any]:
    """What the template says of rows, steps and rates."""
    steps = min(max(len(loaded.pairs) // BATCH, SHORTEST), LONGEST)
    small = sizes.weights < SMALL_MODEL
    # A step is a forward and a backward, of twice its time, of two answers to each prompt; a probe
    # is a forward of two answers to each watched pair of either split.
    step_forwards, pair_forwards = 3 * 2 * BATCH, 2 * 2
    allowed = round(PROBE_SHARE * steps * step_forwards / (PROBES * pair_forwards))
    watched_pairs = min(MOST_WATCHED, allowed)
    why = (
        "15 % of their time"
        if watched_pairs < MOST_WATCHED
        else "which is what pages have room for"
    )
    return {
        "rows": rows_line(loaded.all_counts),
        "sft_rate": "1.0e-3" if small else "1.0e-5",
        "preference_rate": "1.0e-4" if small else "1.0e-6",
        "steps": steps,
        "warmup": steps // WARMUP,
        "batch": BATCH,
        "micro": MICRO,
        "overlong": "drop" if sizes.overlong_pairs or sizes.overlong_answers else "error",
        "probe_every": -(-steps // (PROBES - 1)),
        "watched": f"{watched_pairs}  # of each split; trainings watch their answers, {why}",
        # The first steps often pull hardest: Adam's are then as long as any, whatever the gradient.
        "record_steps": [0, steps // 2],
    }


@dataclass(frozen=True)
class Sizes:
    """Of a model and its rows, in tokens; a row is a prompt with one answer.

    `unknown`: of the training pairs' answers.
    """

    weights: int
    context: int
    row: float
    longest: int
    pairs: int
    overlong_pairs: int
    overlong_answers: int
    unknown: UnknownTokens

    def __str__(self) -> str:
        text = (
            f"The model has {self.weights:,} weights and a context of {self.context} tokens; a "
            f"prompt with one answer has {self.row:.0f} of them (median), at most {self.longest}."
        )
        if self.overlong_pairs:
            text += (
                f" {self.overlong_pairs} of {self.pairs} pairs that were read exceed the context: "
                "trainings leave such pairs out (overlong: drop)."
            )
        return text


def measured_sizes(model: str, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> Sizes:
    """Sizes of the model, and tokens of pairs, or of some of many, and watched answers."""

    language_model = load_language_model(model, tokenizer=tokenizer, device=torch.device("cpu"))
    context = context_length(language_model)
    trained_on, encoder = (Encoder(tokenizer, 2**31, "error") for _ in range(2))
    heldout = [pair for row in loaded.heldout if (pair := encoder.example(row)) is not None]
    pairs = [
        [len(side.ids) for side in (pair.chosen, pair.rejected) if side is not None]
        for pair in [*trained_on.examples(some_rows(loaded.pairs)), *heldout]
    ]
    overlong = sum(max(pair) > context for pair in pairs)
    if overlong == len(pairs):
        raise ConfigError("data", f"{len(pairs)} rows", f"all exceed the context of {context}")
    # A watched answer to another prompt can be longer than any pair.
    responses = [encoder.probe(row) for row in loaded.probes]
    watched = [len(response.ids) for response in responses if response is not None]
    rows = [length for pair in pairs for length in pair]
    return Sizes(
        weights=sum(parameter.numel() for parameter in language_model.parameters()),
        context=context,
        row=statistics.median(rows),
        longest=max(rows),
        pairs=len(pairs),
        overlong_pairs=overlong,
        overlong_answers=sum(length > context for length in watched),
        unknown=trained_on.counts.unknown,
    )


@dataclass(frozen=True)
class WrittenStudy:
    """A study file that was written: what to know before it runs, and how long it takes."""

    notes: list[str]
    sizes: Sizes
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For programs; `row` and `longest` are in tokens."""
        return {"notes": self.notes, "sizes": asdict(self.sizes), "seconds": round(self.seconds)}


def write_study(file: Path, *, model: str, data: Path, program: str) -> WrittenStudy:
    """Writes a study file for a model, which is a folder or a Hub name, and pairs.

    **Raises** `ConfigError` for a file that exists, and for rows or a model that cannot be read.
    """

    if file.exists():
        raise ConfigError("FILE", str(file), "exists; name another, or delete it")
    if not file.parent.is_dir():
        raise ConfigError("FILE", str(file), f"has no folder {file.parent}; make it first")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        resolve_commit("model", model, field="model")
    source = beside(file, folder) if folder.is_dir() else model
    weights = str(folder) if folder.is_dir() else model
    config = file_for_model(data, weights)
    tokenizer = load_tokenizer(weights)
    writer = tokenizer if config.chat_model else None
    loaded = load_data(config, writer)
    some = some_rows(loaded.pairs)
    answers = [text for pair in some for text in (pair.chosen, pair.rejected) if text]
    unknown = unknown_tokens(tokenizer, answers)
    replace = {
        character: plain
        for character, plain in unknown.replacements.items()
        if not unknown_tokens(tokenizer, [plain]).tokens
    }
    if replace:
        config = config.model_copy(update={"replace": replace})
        del loaded, some, answers  # rows of a large file are not in memory twice
        loaded = load_data(config, writer)
    sizes = measured_sizes(weights, tokenizer, loaded)
    settings = settings_for(loaded, sizes) | {
        "sizes": comment(str(sizes)),
        "model": quoted(source),
        "data": quoted(beside(file, data)),
        "format": format_lines(config, source),
        "replace": (
            f"  replace: {json.dumps(replace, ensure_ascii=False)}  # unknown to the tokenizer\n"
            if replace
            else ""
        ),
        "name": quoted(file.stem),
        "file": file,
        "program": program,
    }
    untimed = TEMPLATE.format(**settings, time="#")
    parameters = parse_parameters(StudyParameters, untimed, str(file), folder=file.resolve().parent)
    steps = study_steps(resolved(parameters))
    watched = first_pairs(loaded.probes, parameters.data.probe_pairs)
    costs = PlannedCosts(steps, this_machine(), dataclasses.replace(loaded, probes=watched))
    seconds = {step.name: cost.hours * 3600 for step in steps if (cost := costs.of(step))}
    parts = {**seconds, "start and page": UNTIMED_SECONDS}
    longest = sorted(parts, key=parts.__getitem__, reverse=True)[:3]
    listed = ", ".join(f"{name} {duration(parts[name])}" for name in longest)
    time = (
        f"It takes about {duration(sum(parts.values()))} on this machine alone "
        f"({listed}; --plan estimates every stage)."
    )
    file.write_text(TEMPLATE.format(**settings, time=comment(time)), encoding="utf-8")
    notes = [settings["rows"], f"Columns {loaded.read}.", str(sizes)]
    counts = sizes.unknown
    if replace:
        rest = f"{counts.tokens} ({counts.tokens / counts.total:.1%})" if counts.tokens else "none"
        notes.append(
            f"{unknown.counted}: the file replaces {in_words(replace)}, which leaves {rest}."
        )
    elif unknown.tokens:
        notes.append(f"{unknown}.")
    if config.chat == "plain":
        notes.append(
            "The model has no chat template: messages are written as turns of Human and Assistant."
        )
    notes += [
        f"The file finetunes on the chosen answers first (SFT, learning rate "
        f"{settings['sft_rate']}), as papers do; if your DPO starts from the model as it is, write "
        "`sft: null` there.",
        f"DPO’s learning rate ({settings['preference_rate']}), β (0.1) and steps "
        f"({settings['steps']}) are guesses, enough for a first run: if you know those of your "
        "training, write them into the file, under `preference`.",
        time,
    ]
    if folder.is_dir() and (loaders := about_loaders(weights)):
        notes.append(f"{loaders}.")
    return WrittenStudy(notes, sizes, sum(parts.values()))


def format_lines(config: DataConfig, model: str) -> str:
    """The settings of the rows' format; none for plain pairs."""
    if config.chat == "plain":
        return "  format: chat\n  chat: plain  # HH's turns, as the model has no chat template\n"
    if config.format == "chat":
        return f"  format: chat\n  chat_model: {quoted(model)}  # its template writes messages\n"
    return "" if config.format == "pairs" else f"  format: {config.format}\n"


def comment(text: str) -> str:
    """The text as lines of a YAML comment."""
    return textwrap.fill(text, 98, initial_indent="# ", subsequent_indent="# ")


def quoted(path: str) -> str:
    """A path or name as YAML, quoted where YAML could read something else."""
    plain = re.fullmatch(r"[\w./][\w./-]*", path) and yaml.safe_load(path) == path
    return path if plain else json.dumps(path, ensure_ascii=False)


def beside(file: Path, path: Path) -> str:
    """The path from the file's folder, where it lies below it; else the whole path."""
    absolute, folder = Path(os.path.abspath(path)), Path(os.path.abspath(file)).parent  # noqa: PTH100
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)
