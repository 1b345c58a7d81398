"""Writes a study file for a model and pairs, with comments and what it will cost."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.data.encode import Encoder
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData, file_config, load_data
from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit
from flows.parameters import parse_parameters
from flows.study import StudyParameters

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH, MICRO = 8, 4
SHORTEST, LONGEST = 20, 200  # steps of a training; between them it is one pass over the rows
SMALL_MODEL = 10**8  # weights; below, rates are those of small models
SAMPLE = 4  # pairs whose step is timed

TEMPLATE = """\
# {model} on {data}: {rows}.
{tokens}
#
#   {program} study {file}    runs it; --plan shows what would run, --show all settings
#
{cost}
name: {name}

data:
  source: file
  path: {data}  # from this file's folder
{format}  # heldout_rows: 20    never trained on; default: a tenth of the rows, at most 100

base:
  source: {model}  # a folder, or a Hub name

# Answers that are watched; leave this out for all six kinds (unrelated and random ones, too).
probe_set: {{kinds: [chosen, rejected]}}

# Finetuning on the chosen answers. null: the model is finetuned already.
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
  batch_size: {batch}
  micro_batch_size: {micro}
  overlong: {overlong}
  probe_every: {probe_every}
  record_steps: {record_steps}  # these steps are taken apart, and `explore` maps them

# Who pulled which answer down, over all steps: means of 4 pairs, and the answers that fell most.
ledger: {{pairs: 4, answers: 5, heldout_answers: 3}}
forces: {{pairs: 4}}  # of the recorded steps, with the map of the strongest push, token by token

# Not needed to see which pairs and tokens pull answers down. To add one, delete its line.
audit: null      # what one step would do, for every pair, before any training
squeezing: null  # where the probability went
kernel: null     # how strongly answers are coupled; of these it takes longest
"""


@dataclass(frozen=True)
class Sizes:
    """What decides the cost: tokens of the rows, weights of the model, seconds of a step."""

    weights: int
    context: int
    pair_tokens: float
    longest: int
    overlong: int
    step_seconds: float
    device: str


def write_study(file: Path, *, model: str, data: Path, program: str) -> str:
    """Writes a study file; returns what it will cost.

    The model is a folder or a Hub name. One step is run, to measure its time.

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
    config = file_config(data, weights)
    loaded = load_data(config, load_tokenizer(weights) if config.chat_model else None)
    sizes = _measured(weights, loaded)
    settings = _settings(loaded, sizes)
    text = TEMPLATE.format(
        **settings | {name: _comment(settings[name]) for name in ("tokens", "cost")},
        model=_quoted(source),
        data=_quoted(_beside(file, data)),
        format=_format_lines(config, source),
        name=file.stem,
        file=file,
        program=program,
    )
    parse_parameters(StudyParameters, text, str(file), folder=file.resolve().parent)
    file.write_text(text, encoding="utf-8")
    return f"{settings['rows']}\n{settings['tokens']}\n{settings['cost']}"


def _format_lines(config: DataConfig, model: str) -> str:
    """The settings of the rows' format; none for plain pairs."""
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
    # A step of DPO moves two answers of each pair, one of SFT one.
    sft, preference = steps * sizes.step_seconds / 2, steps * sizes.step_seconds
    counts = {
        "data/train_pairs": float(len(loaded.pairs)),
        "data/heldout_pairs": float(len(loaded.heldout)),
    }
    return {
        "rows": rows_line(loaded.counts | counts),
        "tokens": f"The model has {sizes.weights:,} weights and a context of {sizes.context} "
        f"tokens; a pair has {sizes.pair_tokens:.0f} (median), the longest row {sizes.longest}.",
        "cost": f"About {_duration(sft)} of SFT and {_duration(preference)} of DPO on this "
        f"machine's {sizes.device} (one step was timed), and the analyses: often several times "
        "that.",
        "sft_rate": "1.0e-3" if small else "1.0e-5",
        "preference_rate": "1.0e-4" if small else "1.0e-6",
        "steps": steps,
        "batch": BATCH,
        "micro": MICRO,
        "overlong": "drop" if sizes.overlong else "error",
        "probe_every": max(steps // 10, 1),
        "record_steps": [0, steps // 2, steps - 1],
    }


def _measured(model: str, loaded: LoadedData) -> Sizes:
    """Tokens of pairs and watched answers, and the time of a step on both answers of a batch."""
    import torch

    from models.language import context_length, load_language_model, load_tokenizer

    tokenizer = load_tokenizer(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    language_model = load_language_model(model, tokenizer=tokenizer, device=device).train()
    context = context_length(language_model)
    encoder = Encoder(tokenizer, 2**31, "error")
    encoded = encoder.examples([*loaded.pairs, *loaded.heldout])
    sides = [
        [side for side in (pair.chosen, pair.rejected) if side is not None] for pair in encoded
    ]
    longest = [max(len(side.ids) for side in pair) for pair in sides]
    fitting = [pair for pair, length in zip(sides, longest, strict=True) if length <= context]
    if not fitting:
        raise ConfigError("data", f"{len(encoded)} rows", f"all exceed the context of {context}")
    # A watched answer to another prompt can be longer than any pair.
    watched = [encoder.response(row.pair_id, row.prompt, row.response) for row in loaded.probes]
    longest += [len(answer.ids) for answer in watched if answer is not None]
    seconds = min(_step_seconds(language_model, fitting[:SAMPLE], tokenizer) for _ in range(2))
    return Sizes(
        weights=sum(parameter.numel() for parameter in language_model.parameters()),
        context=context,
        pair_tokens=statistics.median(sum(len(side.ids) for side in pair) for pair in sides),
        longest=max(longest),
        overlong=sum(length > context for length in longest),
        step_seconds=seconds * BATCH / len(fitting[:SAMPLE]),
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
    )


def _step_seconds(model: Any, pairs: list[Any], tokenizer: PreTrainedTokenizerBase) -> float:
    """Seconds of a forward and a backward of both answers of some pairs, padded together."""
    import torch

    ids = [torch.tensor(side.ids) for pair in pairs for side in pair]
    batch = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(model.device)
    began = time.monotonic()
    model(input_ids=batch, labels=batch).loss.backward()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    model.zero_grad()
    return time.monotonic() - began


def _beside(file: Path, path: Path) -> str:
    """The path from the file's folder, where it lies below it; else the whole path."""
    whole, folder = Path(os.path.abspath(path)), Path(os.path.abspath(file)).parent  # noqa: PTH100
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
