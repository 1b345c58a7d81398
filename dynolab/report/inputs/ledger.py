"""Data of a ledger's figures: what every response of a training did to each functional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray

from dynolab.data.rows import Example, read_value
from dynolab.report.inputs.files import rows
from dynolab.results.ledger import FunctionalRow, LedgerSummary, read_table
from dynolab.results.study import TokenMap
from dynolab.statistics import Interval, stratified_total


@dataclass(frozen=True)
class FunctionalAccount:
    """The account of one functional over a whole training, in nats.

    `start`, `end`: its values; `lines`: one for each of the responses accounted for; `decay`: what
    weight decay did; `carried_in`: what momentum from before the first step did, or in single steps
    momentum from before each; `residual`: what the first order and rounding leave unexplained;
    `arithmetic`: what rounding did of it; `unexplained`: what gradients did that no answer made;
    `path`: its value before every step, and after the last. Sums over sampled steps are estimates.
    """

    row: FunctionalRow
    start: float
    end: float
    lines: Float[ndarray, " responses"]
    decay: float
    carried_in: float
    residual: float
    arithmetic: float
    unexplained: float
    path: Float[ndarray, " states"]


@dataclass(frozen=True)
class Pusher:
    """What one example did to an answer or a mean of answers, in nats, and the steps it did it."""

    example: str
    total: float
    from_chosen: float
    from_rejected: float
    steps: tuple[int, ...]

    @classmethod
    def of(
        cls,
        example: str,
        own: Bool[ndarray, " responses"],
        side: Shaped[ndarray, " responses"],
        nats: Float[ndarray, " responses"],
        step: Int[ndarray, " responses"],
    ) -> Pusher:
        """The sum of the lines of an example's `own` responses."""
        chosen = own & (side == "chosen")
        return cls(
            example,
            total=float(nats[own].sum()),
            from_chosen=float(nats[chosen].sum()),
            from_rejected=float(nats[own & ~chosen].sum()),
            steps=tuple(sorted(set(step[own].tolist()))),
        )


@dataclass(frozen=True)
class Moment:
    """A line with its tokens: what one response did at one step, in nats."""

    step: int
    example: str
    side: str
    nats: float
    tokens: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Ledger:
    """A ledger's tables; entry i of `example`, `side` and `step` belongs to line i.

    `weights`: the number of steps that each step stands for, in the order of `steps`.
    `rows`: the data's rows by id, held-out ones too where they are known; `moments`: lines with
    their tokens, by functional; `blocks`: by
    functional what each block of the parameters passed on from chosen and from rejected answers.
    `token_map`: of the hardest pull on the answer that fell most, if one was made.
    """

    summary: LedgerSummary
    accounts: tuple[FunctionalAccount, ...]
    example: Shaped[ndarray, " responses"]
    side: Shaped[ndarray, " responses"]
    step: Int[ndarray, " responses"]
    weights: Int[ndarray, " steps"]
    rows: Mapping[str, Example]
    moments: Mapping[str, Sequence[Moment]]
    blocks: Mapping[str, Mapping[str, tuple[float, float]]]
    token_map: TokenMap | None = None

    @cached_property
    def examples(self) -> list[str]:
        """The ids of all examples that were trained on."""
        return sorted(set(self.example.tolist()))

    @cached_property
    def steps(self) -> list[int]:
        """The steps that are accounted for and learned from something."""
        return sorted(set(self.step.tolist()))

    @property
    def sampled(self) -> bool:
        """Whether steps were drawn, so that sums are estimates."""
        return self.summary.every > 1

    @property
    def span(self) -> str:
        """The steps that the lines are of."""
        if self.sampled:
            return "the drawn steps alone"
        return "the whole training" if self.summary.whole else "the steps that were taken apart"

    @cached_property
    def _number(self) -> Int[ndarray, " responses"]:
        """Each response's example as its place in `examples`."""
        return np.searchsorted(np.array(self.examples), self.example)

    def side_total(self, account: FunctionalAccount, side: str) -> Interval:
        """What all responses of a side did; exact, unless steps were sampled."""
        return stratified_total(self.side_steps(account, side), self.weights)

    def side_steps(self, account: FunctionalAccount, side: str) -> Float[ndarray, " steps"]:
        """What the responses of a side did at each of `steps`."""
        own = np.where(self.side == side, account.lines, 0.0)
        return np.bincount(np.searchsorted(self.steps, self.step), own, len(self.steps))

    def not_sampled(self, account: FunctionalAccount) -> float:
        """How far the estimated parts miss the measured change."""
        sides = (self.side_total(account, side).mean for side in ("chosen", "rejected"))
        others = account.decay + account.carried_in + account.unexplained + account.residual
        return account.end - account.start - sum(sides) - others

    def by_example(self, account: FunctionalAccount) -> Float[ndarray, " examples"]:
        """What each of `examples` did in the steps accounted for."""
        return np.bincount(self._number, account.lines, len(self.examples))

    def by_step(
        self, account: FunctionalAccount, examples: Sequence[int]
    ) -> Float[ndarray, "examples steps"]:
        """What some of `examples` did at each of `steps`, NaN at those without them."""
        cells = np.full((len(self.examples), len(self.steps)), np.nan)
        places = self._number, np.searchsorted(self.steps, self.step)
        cells[places] = 0.0
        np.add.at(cells, places, account.lines)
        return cells[list(examples)]

    def pushers(self, account: FunctionalAccount) -> list[Pusher]:
        """All examples, the one that pushed down hardest first."""
        order = np.argsort(self.by_example(account))
        return [
            Pusher.of(
                self.examples[place], self._number == place, self.side, account.lines, self.step
            )
            for place in order
        ]


def read_ledger(folder: Path, data: Path) -> Ledger:
    """Reads the results of a ledger stage and of the data stage that it was trained on."""
    functionals = rows(folder, "functionals.jsonl", FunctionalRow)
    token_map = folder / "token_map.json"
    summary = read_value(folder / "ledger.json", LedgerSummary)
    steps, lines, responses = (
        {
            name: np.array(values)
            for name, values in read_table(folder, table).items()
            if name != "tokens"
        }
        for table in ("steps", "lines", "responses")
    )
    weights = dict(zip(steps["step"].tolist(), steps["weight"].tolist(), strict=True))
    return Ledger(
        summary=summary,
        accounts=tuple(_account(row, steps, lines, summary.whole) for row in functionals),
        example=responses["example"],
        side=responses["side"],
        step=responses["step"],
        weights=np.array([weights[step] for step in sorted(set(responses["step"].tolist()))]),
        rows={
            row.id: row
            for split in ("heldout", "train")
            for row in rows(data, f"{split}.jsonl", Example, optional=True)
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
    tokens: dict[tuple[str, int, int], list[tuple[str, float]]] = {}
    columns = read_table(folder, "tokens")
    for functional, step, response, token, nats in zip(
        *(columns[name] for name in ("functional", "step", "response", "token", "nats")),
        strict=True,
    ):
        tokens.setdefault((functional, step, response), []).append((token, nats))
    moments: dict[str, list[Moment]] = {}
    for (functional, step, response), own in tokens.items():
        example, side = labels[step, response]
        total = sum(nats for _, nats in own)
        moments.setdefault(functional, []).append(Moment(step, example, side, total, tuple(own)))
    return {name: sorted(own, key=lambda moment: moment.nats) for name, own in moments.items()}


def _account(
    row: FunctionalRow, steps: dict[str, Any], lines: dict[str, Any], whole: bool
) -> FunctionalAccount:
    own = steps["functional"] == row.name
    order = np.argsort(steps["step"][own])
    columns = ("before", "after", "predicted", "rounding", "decay", "carried_in", "unexplained")
    before, after, predicted, rounding, decay, carried_in, unexplained, weight = (
        steps[name][own][order] for name in (*columns, "weight")
    )
    return FunctionalAccount(
        row=row,
        start=float(before[0]),
        end=float(after[-1] if whole else before[0] + (after - before).sum()),
        lines=lines["nats"][lines["functional"] == row.name],
        decay=float((weight * decay).sum()),
        carried_in=float(carried_in[0] if whole else carried_in.sum()),
        residual=float((weight * (after - before - predicted + rounding)).sum()),
        arithmetic=float((weight * rounding).sum()),
        unexplained=float((weight * unexplained).sum()),
        path=np.append(before, after[-1]),
    )
