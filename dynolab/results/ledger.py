"""A training's ledger as tables: Parquet files with the columns named here, in nats.

- `lines.parquet`: `step`, `response` (its number in the step's batch), `functional`, `nats`: what
  the response did to the functional from that step to the end of training.
- `responses.parquet`: `step`, `response`, `example` (its row's id), `side` (`chosen`, or `rejected`
  where it is pushed down), `tokens`: what a line's response is.
- `steps.parquet`: `step`, `functional`, `before` and `after` (its values at both ends of the step),
  `predicted` (to first order along the step's change of the weights), `rounding` (the part of it
  that the trainer's arithmetic did beside the optimizer's formula), `decay` (what the step's
  weight decay did, then and later), `carried_in` (what the momentum before the step did from it
  on), `unexplained` (what the part of the gradient did that no response made; 0 in older files),
  `weight` (the number of steps that this one stands for: 1, unless steps were sampled).
- `tokens.parquet`: `step`, `response`, `functional`, `place` (in the response), `token`, `nats`: of
  some lines the tokens, which add up to them; the hardest pulls on a single answer are among them
  (`dynolab.forces.ledger.account`).
- `blocks.parquet`: `step`, `block` (a layer, or a module before or after the layers), `functional`,
  `side`, `nats`: the sum of the step's lines of a side through the block's parameters.
- `sources.parquet`: `step`, `functional`, `lbk`, `sign_delta`, `kernel_bound`: the papers' measures
  of a step on single answers (`dynolab.forces.ledger.sources`).
- `functionals.jsonl`: `FunctionalRow`. `ledger.json`: `LedgerSummary`. `token_map.json`, if asked
  for: the `dynolab.results.study.TokenMap` of the hardest pull on the answer that fell most.

For every functional `Σ nats + Σ decay + Σ rounding + Σ unexplained + carried_in of the first step +
Σ (after − before − predicted)` is the whole change. Where steps were sampled, the sums are over
`weight` times what a step has, and estimate it (`dynolab.statistics.stratified_total`); the first
and the last step are always there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from dynolab.data.rows import Row, Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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


class FunctionalRow(Row):
    """What a ledger accounts for: the mean log-probability of the answers of a kind, or of one.

    `pairs` are the ids of the rows whose answers it holds. Of kind `argmax` it is the policy's
    likeliest token at every position of their chosen answers.
    """

    name: str
    split: Split
    kind: str
    pairs: tuple[str, ...]

    @property
    def single(self) -> bool:
        """Whether it is one pair's answer."""
        return self.pairs == (self.name,)


class LedgerSummary(Row):
    """How well a ledger closes.

    - `closure`: largest |Σ lines + residual − measured| over the functional's path length, the sum
      of its absolute changes over the steps. With sampled steps: how far the estimate is off.
    - `residual_share`, `rounding_share`: largest |Σ residual| and |Σ rounding| over that length.
    - `whole`: every step was accounted for, momentum by its cause. Else single steps were, with
      momentum where it acted, so that `carried_in` counts at every one of them.
    """

    steps: int
    responses: int
    closure: float
    residual_share: float
    rounding_share: float
    whole: bool = True
    every: int = 1


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

    schema = pa.schema([(column, _type(kind)) for column, kind in TABLES[name].items()])
    table = pa.table({column: columns[column] for column in TABLES[name]}, schema=schema)
    parquet.write_table(table, folder / f"{name}.parquet", compression="zstd")


def read_table(folder: Path, name: str) -> dict[str, list[Any]]:
    """Columns of one of `TABLES`."""
    from pyarrow import parquet

    columns = parquet.read_table(folder / f"{name}.parquet").to_pydict()
    if name == "steps":
        columns.setdefault("unexplained", [0.0] * len(columns["step"]))
    return columns


def _type(kind: str):  # type: ignore[no-untyped-def]
    import pyarrow as pa

    return pa.list_(pa.int32()) if kind == "list<int32>" else pa.type_for_alias(kind)
