"""Writes a study file for a model and pairs, with comments and what it will take."""

from __future__ import annotations

import json
import os
import re
import statistics
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.costs.machines import this_machine
from dynolab.costs.stage import UNTIMED_SECONDS, duration
from dynolab.data.encode import Encoder
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData, load_data
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit
from flows.parameters import parse_parameters
from flows.stage_costs import PlannedCosts
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.data import file_for_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH, MICRO = 8, 4
SHORTEST, LONGEST = 20, 200  # steps of a training; between them it is one pass over the rows
WARMUP = 5  # a fifth of the steps
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
{format}  # heldout_rows: 20    never trained on; default: a tenth of the rows, at most 100

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
  overlong: {overlong}  # rows beyond the context: error, drop or truncate_left
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
  record_steps: {record_steps}  # these steps are taken apart, and `explore` maps them

# Who pulled which answer down, over all steps: means of 4 pairs, and the answers that fell most.
ledger: {{pairs: 4, answers: 5, heldout_answers: 3}}
forces: {{pairs: 2}}  # of the recorded steps, with the map of the strongest push, token by token

# Not needed to see which pairs and tokens pull answers down. To add one, delete its line.
audit: null      # what one step would do, for every pair, before any training
squeezing: null  # where the probability went
kernel: null     # how strongly answers are coupled; of these it takes longest
"""


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
            f"prompt with one answer has {self.row:.0f} (median), at most {self.longest}."
        )
        if self.overlong_pairs:
            text += (
                f" {self.overlong_pairs} of {self.pairs} pairs exceed the context: trainings leave "
                "them out (overlong: drop)."
            )
        return text


def write_study(file: Path, *, model: str, data: Path, program: str) -> str:
    """Writes a study file; returns what to know before it runs, with the time that it takes.

    The model is a folder or a Hub name.

    **Raises** `ConfigError` for a file that exists, and for rows or a model that cannot be read.
    """
    from models.language import load_tokenizer

    if file.exists():
        raise ConfigError("file", str(file), "exists; name another, or delete it")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        resolve_commit("model", model, field="model")
    source = _beside(file, folder) if folder.is_dir() else model
    weights = str(folder) if folder.is_dir() else model
    config = file_for_model(data, weights)
    tokenizer = load_tokenizer(weights)
    loaded = load_data(config, tokenizer if config.chat_model else None)
    sizes = _measured(weights, tokenizer, loaded)
    settings = _settings(loaded, sizes) | {
        "sizes": _comment(str(sizes)),
        "model": _quoted(source),
        "data": _quoted(_beside(file, data)),
        "format": _format_lines(config, source),
        "name": file.stem,
        "file": file,
        "program": program,
    }
    untimed = TEMPLATE.format(**settings, time="#")
    parameters = parse_parameters(StudyParameters, untimed, str(file), folder=file.resolve().parent)
    time = _time(parameters)
    file.write_text(TEMPLATE.format(**settings, time=_comment(time)), encoding="utf-8")
    lines = [settings["rows"], str(sizes)]
    if sizes.unknown.tokens:
        lines.append(f"{sizes.unknown}.")
    if config.chat == "plain":
        lines.append(
            "The model has no chat template: messages are written as turns of Human and Assistant."
        )
    lines.append(
        f"The file finetunes on the chosen answers first (SFT, learning rate "
        f"{settings['sft_rate']}); a model that is finetuned already needs `sft: null` there."
    )
    return "\n".join([*lines, time])


def _time(parameters: StudyParameters) -> str:
    """How long the study will take here, stage by stage, as `--plan` estimates it."""
    machine, steps = this_machine(), study_steps(resolved(parameters))
    costs = PlannedCosts(steps, machine)
    seconds = {
        step.name: cost.hours * 3600 for step in steps if (cost := costs.of(step)) is not None
    }
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{name} {duration(seconds[name])}" for name in longest)
    return (
        f"It takes about {duration(sum(seconds.values()) + UNTIMED_SECONDS)} on this machine alone "
        f"({parts}; --plan estimates every stage)."
    )


def _format_lines(config: DataConfig, model: str) -> str:
    """The settings of the rows' format; none for plain pairs."""
    if config.chat == "plain":
        return "  format: chat\n  chat: plain  # HH's turns, as the model has no chat template\n"
    if config.format == "chat":
        return f"  format: chat\n  chat_model: {_quoted(model)}  # its template writes messages\n"
    return "" if config.format == "pairs" else f"  format: {config.format}\n"


def _comment(text: str) -> str:
    return textwrap.fill(text, 98, initial_indent="# ", subsequent_indent="# ")


def _quoted(path: str) -> str:
    """A path as YAML, quoted where YAML could read something else."""
    return path if re.fullmatch(r"[\w./][\w./-]*", path) else json.dumps(path, ensure_ascii=False)


def _settings(loaded: LoadedData, sizes: Sizes) -> dict[str, Any]:
    steps = min(max(len(loaded.pairs) // BATCH, SHORTEST), LONGEST)
    small = sizes.weights < SMALL_MODEL
    counts = {
        "data/train_pairs": float(len(loaded.pairs)),
        "data/heldout_pairs": float(len(loaded.heldout)),
    }
    return {
        "rows": rows_line(loaded.counts | counts),
        "sft_rate": "1.0e-3" if small else "1.0e-5",
        "preference_rate": "1.0e-4" if small else "1.0e-6",
        "steps": steps,
        "warmup": steps // WARMUP,
        "batch": BATCH,
        "micro": MICRO,
        "overlong": "drop" if sizes.overlong_pairs or sizes.overlong_answers else "error",
        "probe_every": max(steps // 10, 1),
        # The first steps often pull hardest: Adam's are then as long as any, whatever the gradient.
        "record_steps": [0, steps // 2],
    }


def _measured(model: str, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> Sizes:
    """Sizes of the model, and tokens of pairs and watched answers."""
    import torch

    from models.language import context_length, load_language_model

    language_model = load_language_model(model, tokenizer=tokenizer, device=torch.device("cpu"))
    context = context_length(language_model)
    trained_on, encoder = (Encoder(tokenizer, 2**31, "error") for _ in range(2))
    encoded = [*trained_on.examples(loaded.pairs), *encoder.examples(loaded.heldout)]
    pairs = [
        [len(side.ids) for side in (pair.chosen, pair.rejected) if side is not None]
        for pair in encoded
    ]
    overlong = sum(max(pair) > context for pair in pairs)
    if overlong == len(pairs):
        raise ConfigError("data", f"{len(pairs)} rows", f"all exceed the context of {context}")
    # A watched answer to another prompt can be longer than any pair.
    responses = [encoder.response(row.pair_id, row.prompt, row.response) for row in loaded.probes]
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


def _beside(file: Path, path: Path) -> str:
    """The path from the file's folder, where it lies below it; else the whole path."""
    whole, folder = Path(os.path.abspath(path)), Path(os.path.abspath(file)).parent  # noqa: PTH100
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)
