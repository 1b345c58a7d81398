"""A training's ledger as tables: Parquet files with the columns named here, in nats.

- `lines.parquet`: `step`, `response` (its number in the step's batch), `functional`, `nats`: what
  that step would have lacked without the response, to the end of training.
- `responses.parquet`: `step`, `response`, `example` (its row's id), `side` (`chosen`, or `rejected`
  where it is pushed down), `tokens`: what a line's response is.
- `steps.parquet`: `step`, `functional`, `before` and `after` (its values at both ends of the step),
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
  of a step on single answers (`dynolab.forces.map.terms`).
- `functionals.jsonl`: `FunctionalRow`. `ledger.json`: `LedgerSummary`. `token_map.json`, if asked
  for: the `dynolab.results.study.TokenMap` of the hardest pull on the answer that fell most.

For every functional `Σ nats + Σ together + Σ decay + Σ rounding + Σ unexplained + carried_in of the
first step + Σ (after − before − predicted)` is the whole change. Where steps were sampled, the sums
are over `weight` times what a step has, and estimate it (`dynolab.statistics.stratified_total`);
the first and the last step are always there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

from dynolab.data.rows import Example, Row, Split, read_rows, read_value
from dynolab.grouping import grouped
from dynolab.results.study import TokenMap
from dynolab.statistics import Interval, stratified_total

SHOWN_TOGETHER = 0.05
"""Share of all lines' sizes from which on what answers did together is shown by itself."""

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
    def missing(self) -> float:
        """What the parts leave of the measured change: rounding, or how far estimates are off."""
        made = self.nats + self.together + self.decay + self.carried_in
        return self.end - self.start - made - self.unexplained - self.residual


@dataclass(frozen=True)
class FunctionalAccount(Account):
    """The account of the functional that `row` names."""

    row: FunctionalRow


def account_of(
    name: str, steps: Mapping[str, ndarray], lines: Mapping[str, ndarray], *, every_step: bool
) -> Account:
    """Sums a functional's entries.

    **Arguments:** `steps`, `lines`: arrays of these tables; `every_step`: `LedgerSummary.whole`.
    """
    own = steps["functional"] == name
    order = np.argsort(steps["step"][own])
    step, weight, before, after, predicted, rounding, decay, carried_in, unexplained, together = (
        steps[column][own][order] for column in ("step", "weight", *PER_STEP)
    )
    mine, change = lines["functional"] == name, after - before
    nats = lines["nats"][mine]
    return Account(
        start=float(before[0]),
        end=float(after[-1] if every_step else before[0] + change.sum()),
        lines=nats,
        nats=float((weight[np.searchsorted(step, lines["step"][mine])] * nats).sum()),
        decay=float((weight * decay).sum()),
        carried_in=float(carried_in[0] if every_step else carried_in.sum()),
        residual=float((weight * (change - predicted + rounding)).sum()),
        arithmetic=float((weight * rounding).sum()),
        unexplained=float((weight * unexplained).sum()),
        together=float((weight * together).sum()),
        path=np.append(before, after[-1]),
        length=float((weight * np.abs(change)).sum()),
    )


@dataclass(frozen=True)
class Pusher:
    """What one example did to an answer or a mean of answers, in nats, and the steps it did it."""

    example: str
    total: float
    from_chosen: float
    from_rejected: float
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Responses:
    """The responses that lines are of: each one's example, its side, and the step."""

    example: Shaped[ndarray, " responses"]
    side: Shaped[ndarray, " responses"]
    step: Int[ndarray, " responses"]

    @cached_property
    def _numbered(self) -> tuple[Shaped[ndarray, " examples"], Int[ndarray, " responses"]]:
        """The examples' ids, and each response's example as its place among them."""
        names, number = np.unique(self.example, return_inverse=True)
        return names, number

    @cached_property
    def examples(self) -> list[str]:
        """The ids of all examples, in order."""
        names: list[str] = self._numbered[0].tolist()
        return names

    @cached_property
    def steps(self) -> list[int]:
        """The steps that have responses, in order."""
        return sorted(set(self.step.tolist()))

    @cached_property
    def _steps_of(self) -> list[tuple[int, ...]]:
        """The steps of each of `examples`."""
        number = self._numbered[1]
        ends = np.cumsum(np.bincount(number))[:-1]
        of_example = np.split(self.step[np.argsort(number, kind="stable")], ends)
        return [tuple(sorted(set(steps.tolist()))) for steps in of_example]

    def by_example(self, nats: Float[ndarray, " responses"]) -> Float[ndarray, " examples"]:
        """What each of `examples` did, in the sum of its lines."""
        return np.bincount(self._numbered[1], nats, len(self.examples))

    def by_step(
        self, nats: Float[ndarray, " responses"], examples: Sequence[int]
    ) -> Float[ndarray, "examples steps"]:
        """What some of `examples` did at each of `steps`, NaN at those without them."""
        cells = np.full((len(self.examples), len(self.steps)), np.nan)
        places = self._numbered[1], np.searchsorted(self.steps, self.step)
        cells[places] = 0.0
        np.add.at(cells, places, nats)
        return cells[list(examples)]

    def pushers(self, nats: Float[ndarray, " responses"]) -> list[Pusher]:
        """All examples, the one that pushed down hardest first."""
        chosen = self.side == "chosen"
        total, through, other = (
            self.by_example(own)
            for own in (nats, np.where(chosen, nats, 0.0), np.where(chosen, 0.0, nats))
        )
        return [
            Pusher(
                self.examples[place],
                float(total[place]),
                float(through[place]),
                float(other[place]),
                self._steps_of[place],
            )
            for place in np.argsort(total)
        ]


@dataclass(frozen=True)
class Moment:
    """A line with its tokens: what one response did at one step, in nats."""

    example: str
    side: str
    nats: float
    tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class LedgerReader(Responses):
    """A ledger's tables; entry i of `example`, `side` and `step` belongs to line i.

    `weights`: the number of steps that each step stands for, in the order of `steps`.
    `rows`: the data's rows by id, held-out ones too where they are known; `moments`: lines with
    their tokens, by functional; `blocks`: by functional, the nats that each block of the parameters
    passed on from chosen and from rejected answers.
    `token_map`: of the hardest pull on the answer that fell most, if one was made.
    """

    summary: LedgerSummary
    accounts: tuple[FunctionalAccount, ...]
    weights: Int[ndarray, " steps"]
    rows: Mapping[str, Example]
    moments: Mapping[str, Sequence[Moment]]
    blocks: Mapping[str, Mapping[str, tuple[float, float]]]
    token_map: TokenMap | None = None

    @property
    def sampled(self) -> bool:
        """Whether steps were sampled, so that sums are estimates."""
        return self.summary.every > 1

    @property
    def span(self) -> str:
        """The steps that the lines are of."""
        if self.sampled:
            return "the sampled steps alone"
        return "the whole training" if self.summary.whole else "the analysed steps"

    @property
    def together_shown(self) -> bool:
        """Whether what answers did together is above `SHOWN_TOGETHER` of some account's lines."""
        return any(
            abs(account.together) > SHOWN_TOGETHER * np.abs(account.lines).sum()
            for account in self.accounts
        )

    def without(self, examples: Collection[str]) -> dict[str, float]:
        """What leaving examples out of the training would change each account's end by, in nats.

        Minus the sum of their lines. Later steps would have been others, and several examples that
        are left out of one step at once change it by more or less than the sum: `Ledger(groups=…)`
        has their lines together.
        """
        gone = np.isin(self.example, list(examples))
        return {account.row.name: -float(account.lines[gone].sum()) for account in self.accounts}

    def side_total(self, account: Account, side: str) -> Interval:
        """What all responses of a side did; exact, unless steps were sampled."""
        own = np.where(self.side == side, account.lines, 0.0)
        at_step = np.bincount(np.searchsorted(self.steps, self.step), own, len(self.steps))
        return stratified_total(at_step, self.weights)


def read_ledger(folder: Path, data: Path) -> LedgerReader:
    """Reads the results of a ledger stage and of the data stage that it was trained on."""
    token_map = folder / "token_map.json"
    summary = read_value(folder / "ledger.json", LedgerSummary)
    steps, lines, responses = (
        read_arrays(read_table(folder, table)) for table in ("steps", "lines", "responses")
    )
    weights = dict(zip(steps["step"].tolist(), steps["weight"].tolist(), strict=True))
    return LedgerReader(
        summary=summary,
        accounts=tuple(
            FunctionalAccount(
                row=row, **vars(account_of(row.name, steps, lines, every_step=summary.whole))
            )
            for row in read_rows(folder / "functionals.jsonl", FunctionalRow)
        ),
        example=responses["example"],
        side=responses["side"],
        step=responses["step"],
        weights=np.array([weights[step] for step in sorted(set(responses["step"].tolist()))]),
        rows={
            row.id: row
            for split in ("heldout", "train")
            if (file := data / f"{split}.jsonl").exists()
            for row in read_rows(file, Example)
        },
        moments=_moments(folder, responses),
        blocks=_blocks(folder, weights),
        token_map=read_value(token_map, TokenMap) if token_map.exists() else None,
    )


def _blocks(folder: Path, weights: Mapping[int, int]) -> dict[str, dict[str, tuple[float, float]]]:
    """Sums over the steps, by functional and block, in the order of the model's parameters."""
    columns = read_table(folder, "blocks")
    sums: dict[str, dict[str, dict[str, float]]] = {}
    for step, block, functional, side, nats in zip(
        *(columns[name] for name in ("step", "block", "functional", "side", "nats")), strict=True
    ):
        own = sums.setdefault(functional, {}).setdefault(block, {"chosen": 0.0, "rejected": 0.0})
        own[side] += weights[step] * nats
    return {
        functional: {
            block: (blocks[block]["chosen"], blocks[block]["rejected"])
            for block in sorted(blocks, key=_depth)
        }
        for functional, blocks in sums.items()
    }


def _depth(block: str) -> tuple[int, int, str]:
    """Embeddings, then layers by their number, then what stands after them."""
    number = block.rpartition(".")[2]
    if number.isdigit():
        return 1, int(number), block
    return (0 if "emb" in block or block in ("wte", "wpe") else 2), 0, block


def _moments(folder: Path, responses: dict[str, Any]) -> dict[str, list[Moment]]:
    """Lines with their tokens, the hardest downwards first."""
    labels = {
        (step, response): (example, side)
        for step, response, example, side in zip(
            *(responses[name].tolist() for name in ("step", "response", "example", "side")),
            strict=True,
        )
    }
    columns = read_table(folder, "tokens")
    tokens: dict[tuple[str, int, int], list[tuple[str, float]]] = grouped(
        ((functional, step, response), (token, nats))
        for functional, step, response, token, nats in zip(
            *(columns[name] for name in ("functional", "step", "response", "token", "nats")),
            strict=True,
        )
    )
    moments = grouped(
        (functional, Moment(*labels[step, response], sum(nats for _, nats in own), tuple(own)))
        for (functional, step, response), own in tokens.items()
    )
    return {name: sorted(own, key=lambda moment: moment.nats) for name, own in moments.items()}
