"""A token map of the page as a command and in Python: where both give the page's numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from dash import html

from dynolab.data.rows import ProbeRow
from dynolab.explorer.page import parts
from dynolab.explorer.step import Asked
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training

UNBOUNDED = 2**31


def copies(
    study: Study,
    training: Training,
    row: ProbeRow,
    pair: str,
    step: int,
    asked: Asked,
    batch: Sequence[str],
    program: str,
) -> Any:
    """What can be copied, and why something cannot.

    **Arguments:** `batch`: the pairs of the recorded step.
    """
    offered: list[Any] = []
    if pair not in batch:
        offered.append(_refused("Neither: a pair that was not in the step's batch is scored first"))
    else:
        if why := _no_command(training, row, asked):
            offered.append(_refused(f"No command: {why}"))
        else:
            command = map_command(study, training, row, step, len(batch), program)
            label = "as a command: the maps of the step's batch on this answer, as a page"
            offered.append(parts.copied(label, command))
        if (training.folder / "adapter").exists():
            offered.append(_refused("No Python: the model's adapters are to be split off first"))
        else:
            offered.append(parts.copied("in Python", map_python(training, row, step, pair, asked)))
    return html.Details([html.Summary("the same as a command, in Python"), *offered])


def map_command(
    study: Study, training: Training, row: ProbeRow, step: int, maps: int, program: str
) -> str:
    """The command that makes a page of a recorded step's maps on an answer."""
    changes = {
        "study": None,
        "reference": None,
        "data_result": study.data,
        "checkpoints": {"trained": {"result": training.result, "step": step}},
        "analysis.updating": "recorded",
        "analysis.pair_ids": [row.pair_id],
        "analysis.kinds": [row.kind],
        "analysis.token_maps": maps,
    }
    parts_of = (shlex.quote(f"{name}={json.dumps(value)}") for name, value in changes.items())
    return " ".join([f"{program} forces", *(f"--set {change}" for change in parts_of)])


def map_python(training: Training, row: ProbeRow, step: int, pair: str, asked: Asked) -> str:
    """The map in Python, where the program was started that made the study."""
    plain = ".as_gradient_step()" if asked.metric == "gradient" else ""
    turn = "" if row.turn is None else f", {row.turn!r}"
    return f"""\
from dynolab import Encoder, PolicyFunction, Result, split_step, token_forces

training = Result.open({training.result!r})
record, policy = training.record({step}){plain}, PolicyFunction(training.model())
answer = Encoder(training.tokenizer(), {UNBOUNDED}, "error").response(
    {row.pair_id!r}, {row.prompt!r}, {row.response!r}{turn}
)
pair = [example.id for example in record.examples].index({pair!r})
force = token_forces(record, policy, split_step(record, policy).update, pair, answer)
print(f"{{force.sum():+.3g}} nats")  # rows: the answer's tokens; columns: the pair's"""


def _no_command(training: Training, row: ProbeRow, asked: Asked) -> str:
    """Why `dynolab forces` cannot observe the answer; empty where it can."""
    if asked.metric == "gradient":
        return "it takes the optimizer's own step"
    watched = training.answers.get(row.kind, ())
    if row.split == "train" and any(answer.row == row for answer in watched):
        return ""
    return "it observes answers of training pairs that were watched"


def _refused(why: str) -> Any:
    return html.P(f"{why}.", className="quiet")
