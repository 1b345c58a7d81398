"""The study file that `dynolab init` writes, and the settings that it fills in."""

from __future__ import annotations

import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData
from flows.init.sizes import Sizes

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
{format}{replace}  # heldout_rows: 20    never trained on; default: a tenth of the rows, at most 100

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
  record_steps: {record_steps}  # these steps are taken apart, and `explore` maps them

# Who pulled which answer down, over all steps: means of 4 pairs, and the answers that fell most,
# with the map of the hardest pull, token by token.
ledger: {{pairs: 4, answers: 5, heldout_answers: 3, token_map: true}}
forces: {{pairs: 2}}  # of the recorded steps: how well first order foretells what they did

# Not needed to see which pairs and tokens pull answers down. To add one, delete its line.
audit: null      # what one step would do, for every pair, before any training
squeezing: null  # where the probability went
kernel: null     # how strongly answers are coupled; of these it takes longest
"""


def settings_for(loaded: LoadedData, sizes: Sizes) -> dict[str, Any]:
    """What the template says of rows, steps and rates."""
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


def format_lines(config: DataConfig, model: str) -> str:
    """The settings of the rows' format; none for plain pairs."""
    if config.chat == "plain":
        return "  format: chat\n  chat: plain  # HH's turns, as the model has no chat template\n"
    if config.format == "chat":
        return f"  format: chat\n  chat_model: {quoted(model)}  # its template writes messages\n"
    return "" if config.format == "pairs" else f"  format: {config.format}\n"


def replace_lines(config: DataConfig) -> str:
    """The setting that replaces characters; none if nothing is replaced."""
    if not config.replace:
        return ""
    return (
        f"  replace: {json.dumps(config.replace, ensure_ascii=False)}  # unknown to the tokenizer\n"
    )


def comment(text: str) -> str:
    """The text as lines of a YAML comment."""
    return textwrap.fill(text, 98, initial_indent="# ", subsequent_indent="# ")


def quoted(path: str) -> str:
    """A path as YAML, quoted where YAML could read something else."""
    return path if re.fullmatch(r"[\w./][\w./-]*", path) else json.dumps(path, ensure_ascii=False)


def beside(file: Path, path: Path) -> str:
    """The path from the file's folder, where it lies below it; else the whole path."""
    whole, folder = Path(os.path.abspath(path)), Path(os.path.abspath(file)).parent  # noqa: PTH100
    return str(whole.relative_to(folder)) if whole.is_relative_to(folder) else str(whole)
