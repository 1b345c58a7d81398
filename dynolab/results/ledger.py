"""A training's ledger as tables: Parquet files with the columns named here, in nats.

- `lines.parquet`: `step`, `response` (its number in the step's batch), `functional`, `nats`: what
  that step would have lacked without the response, to the end of training.
- `responses.parquet`: `step`, `response`, `example` (its row's id), `side` (`chosen`, or `rejected`
  where it is pushed down), `tokens`: what a line's response is.
- `steps.parquet`: `step`, `functional`, `before` and `after` (its values at both ends of the step;
  within a stretch of steps without slopes by `predicted`, whose first step then has all residual),
  `predicted` (to first order along the step's change of the weights), `rounding` (the part of it
  that the trainer's arithmetic did beside the optimizer's formula), `decay` (what the step's
  weight decay did, then and later), `carried_in` (what the momentum before the step did from it
  on), `unexplained` (what the part of the gradient did that no response made; 0 in older files),
  `together` (what the responses did by sharing a clip factor and a second moment; 0 in older files,
  whose lines are shares of the step as it was: `LedgerSummary.lines`), `weight` (the number of
  steps that this one stands for: 1, unless steps were sampled).
- `tokens.parquet`: `step`, `response`, `functional`, `place` (in the response), `token`, `nats`: of
  some lines the tokens, which add up to them; the hardest pulls on a single answer are among them
  (`dynolab.forces.ledger.account`).
- `blocks.parquet`: `step`, `block` (a layer, or a module before or after the layers), `functional`,
  `side`, `nats`: the sum of the step's lines of a side through the block's parameters.
- `sources.parquet`: `step`, `functional`, `lbk`, `sign_delta`, `kernel_bound`: the papers' measures
  of a step on single answers (`dynolab.forces.map.terms`), where both its ends have slopes.
- `functionals.jsonl`: `FunctionalRow`. `ledger.json`: `LedgerSummary`. `token_map.json`, if asked
  for: the `dynolab.results.study.TokenMap` of the hardest pull on the answer that fell most.

For every functional `Σ nats + Σ together + Σ decay + Σ rounding + Σ unexplained + carried_in of the
first step + Σ (after − before − predicted)` is the whole change. Where steps were sampled, the sums
are over `weight` times what a step has, and estimate it (`dynolab.statistics.stratified_total`);
the first and the last step are always there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.data.rows import Row, Split

MEASURED: Mapping[str, str] = {
    "entropy": "entropy of the next token, a mean over the chosen answers' tokens",
    "kl": "KL of the policy to the reference, a mean over the chosen answers' tokens",
    "margin": "log π(chosen) − log π(rejected), a mean over pairs",
    "contrast": "log π(unwanted) − log π(wanted), a mean over prompts",
    "reward": "Σ (r − r̄) log π over n watched answers, by n: the gradient of the mean reward r",
}
"""Kinds that are measured at answers and are no answer's log-probability, with what they are."""

NOISY = 0.2
"""Share of a functional's path from which on what rounding did makes single lines unreadable."""

TABLES = {
    "lines": {"step": "int32", "response": "int32", "functional": "string", "nats": "float64"},
    "responses": {
        "step": "int32",
        "response": "int32",
        "example": "string",
        "side": "string",
        "tokens": "list<int32>",
    },
    "steps": {
        "step": "int32",
        "functional": "string",
        "before": "float64",
        "after": "float64",
        "predicted": "float64",
        "rounding": "float64",
        "decay": "float64",
        "carried_in": "float64",
        "unexplained": "float64",
        "together": "float64",
        "weight": "int32",
    },
    "tokens": {
        "step": "int32",
        "response": "int32",
        "functional": "string",
        "place": "int32",
        "token": "string",
        "nats": "float64",
    },
    "blocks": {
        "step": "int32",
        "block": "string",
        "functional": "string",
        "side": "string",
        "nats": "float64",
    },
    "sources": {
        "step": "int32",
        "functional": "string",
        "lbk": "float64",
        "sign_delta": "float64",
        "kernel_bound": "float64",
    },
}
"""Tables and their columns with Arrow's types."""

PER_STEP = (
    "before",
    "after",
    "predicted",
    "rounding",
    "decay",
    "carried_in",
    "unexplained",
    "together",
)
"""Columns of `steps` with a number for every step and functional."""


class FunctionalRow(Row):
    """What a ledger accounts for: the mean log-probability of the answers of a kind, or of one.

    `pairs` are the ids of the rows whose answers it holds. Of kind `argmax` it is the policy's
    likeliest token at every position of their chosen answers; of the kinds of `MEASURED`, what is
    said there.
    """

    name: str
    split: Split
    kind: str
    pairs: tuple[str, ...]

    @property
    def single(self) -> bool:
        """Whether it is one pair's answer."""
        return self.pairs == (self.name,)

    @property
    def is_logp(self) -> bool:
        """Whether it is a mean of log-probabilities, which cannot rise above 0."""
        return self.kind not in MEASURED


class LedgerSummary(Row):
    """How well a ledger closes.

    - `closure`: largest |Σ lines + residual − measured| over the functional's path length, the sum
      of its absolute changes over the steps. With sampled steps: how far the estimate is off.
    - `residual_share`, `rounding_share`: largest |Σ residual| and |Σ rounding| over that length;
      above `NOISY`, lines are too noisy to be read.
    - `whole`: every step was accounted for, momentum by its cause. Else single steps were, with
      momentum where it acted, so that `carried_in` counts at every one of them.
    - `lines`: `removal`, what the step would have lacked without the response; `shares`, in older
      files and under optimizers of unknown form, its share of the step as it was, which under an
      adaptive optimizer or clipping is not what leaving it out does.
    - `checks`: what the callback found of a training that its accounts do not hold.
    """

    steps: int
    responses: int
    closure: float
    residual_share: float
    rounding_share: float
    whole: bool = True
    every: int = 1
    lines: Literal["removal", "shares"] = "shares"
    checks: tuple[str, ...] = ()

    @property
    def noisy(self) -> bool:
        """Whether rounding did so much that single lines say little."""
        return self.rounding_share > NOISY


class StepLine(Row):
    """What one response did at one step, without what momentum brings later: `ledger.jsonl`.

    `functional` is a kind of answers, whose mean log-probability it moved by `nats`; `response` is
    the response's number in the step's batch.
    """

    step: int
    functional: str
    example: str
    side: Literal["chosen", "rejected"]
    response: int
    nats: float


def write_table(folder: Path, name: str, columns: Mapping[str, Sequence[object]]) -> None:
    """Writes one of `TABLES` as Parquet; texts that repeat are stored once."""
    import pyarrow as pa
    from pyarrow import parquet

    lists = {"list<int32>": pa.list_(pa.int32())}  # which has no alias
    schema = pa.schema(
        [
            (column, lists.get(kind) or pa.type_for_alias(kind))
            for column, kind in TABLES[name].items()
        ]
    )
    table = pa.table({column: columns[column] for column in TABLES[name]}, schema=schema)
    parquet.write_table(table, folder / f"{name}.parquet", compression="zstd")


def read_table(folder: Path, name: str) -> dict[str, list[Any]]:
    """Columns of one of `TABLES`."""
    from pyarrow import parquet

    columns = parquet.read_table(folder / f"{name}.parquet").to_pydict()
    if name == "steps":
        for later_column in ("unexplained", "together"):
            columns.setdefault(later_column, [0.0] * len(columns["step"]))
    return columns


def read_arrays(columns: Mapping[str, Sequence[Any]]) -> dict[str, ndarray]:
    """Columns of a table as arrays, without lists of tokens."""
    return {name: np.array(values) for name, values in columns.items() if name != "tokens"}


@dataclass(frozen=True)
class Account:
    """What moved one functional over a whole training, in nats.

    `start`, `end`: its values; `lines`: one for each of the responses accounted for, and `nats`
    their sum; `decay`: what weight decay did; `carried_in`: what momentum from before the first
    step did, or in single steps momentum from before each; `residual`: what the first order and
    rounding leave unexplained; `arithmetic`: what rounding did of it; `unexplained`: what gradients
    did that no answer made; `together`: what answers did by sharing a clip factor and a second
    moment; `path`: its value before every step, and after the last; `length`: the
    sum of its absolute changes. Sums over sampled steps are estimates, but for `lines`.
    """

    start: float
    end: float
    lines: Float[ndarray, " responses"]
    nats: float
    decay: float
    carried_in: float
    residual: float
    arithmetic: float
    unexplained: float
    together: float
    path: Float[ndarray, " states"]
    length: float

    @property
    def steady(self) -> bool:
        """Whether its change is at least half of its path.

        Else steps undid most of what others did, and what a response did in its own step says
        little of where a training without it ends.
        """
        return abs(self.end - self.start) >= self.length / 2

    @property
    def missing(self) -> float:
        """What the parts leave of the measured change: rounding, or how far estimates are off."""
        parts = self.nats + self.together + self.decay + self.carried_in
        return self.end - self.start - parts - self.unexplained - self.residual


@dataclass(frozen=True)
class FunctionalAccount(Account):
    """The account of the functional that `row` names."""

    row: FunctionalRow

    @property
    def bounded_end(self) -> float:
        """Its end, of a log-probability, which cannot rise above 0; −∞ of what has no bound."""
        return self.end if self.row.is_logp else -math.inf


def account_of(
    name: str, steps: Mapping[str, ndarray], lines: Mapping[str, ndarray], *, every_step: bool
) -> Account:
    """Sums a functional's entries.

    **Arguments:** `steps`, `lines`: arrays of these tables; `every_step`: `LedgerSummary.whole`.
    """
    of_steps = steps["functional"] == name
    order = np.argsort(steps["step"][of_steps])

    def column(name: str) -> ndarray:
        return steps[name][of_steps][order]

    def total(values: Float[ndarray, " steps"]) -> float:
        return float((weight * values).sum())

    step, weight = column("step"), column("weight")
    before, after, rounding = column("before"), column("after"), column("rounding")
    carried_in, change = column("carried_in"), after - before
    of_lines = lines["functional"] == name
    nats = lines["nats"][of_lines]
    line_weights = weight[np.searchsorted(step, lines["step"][of_lines])]
    return Account(
        start=float(before[0]),
        end=float(after[-1] if every_step else before[0] + change.sum()),
        lines=nats,
        nats=float((line_weights * nats).sum()),
        decay=total(column("decay")),
        carried_in=float(carried_in[0] if every_step else carried_in.sum()),
        residual=total(change - column("predicted") + rounding),
        arithmetic=total(rounding),
        unexplained=total(column("unexplained")),
        together=total(column("together")),
        path=np.append(before, after[-1]),
        length=total(np.abs(change)),
    )
