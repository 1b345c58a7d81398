"""Reads a training's ledger: its lines by example and step, and its accounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

from dynolab.data.rows import Example, read_rows, read_value
from dynolab.results.ledger import (
    Account,
    FunctionalAccount,
    FunctionalRow,
    LedgerSummary,
    account_of,
    read_arrays,
    read_table,
)
from dynolab.results.study import TokenMap
from dynolab.statistics import Interval, stratified_total

SHOWN_TOGETHER = 0.05
"""Share of all lines' sizes from which on what answers did together is shown by itself."""


@dataclass(frozen=True)
class Pusher:
    """What one example did to an answer or a mean of answers, in nats, and the steps it did it."""

    example: str
    total: float
    from_chosen: float
    from_rejected: float
    steps: tuple[int, ...]


PASSES = 2
"""Passes over the rows from which on it matters more which rows there are than in which order."""

FEW = 5
"""Pairs at most that are named as those that made half of a fall."""


@dataclass(frozen=True)
class Pulls:
    """The pairs that pulled an answer down, or held it up, the hardest first."""

    pushers: Sequence[Pusher]

    @classmethod
    def down(cls, pushers: Sequence[Pusher]) -> Pulls:
        """Those of `pushers`, the hardest downwards first, that pulled down."""
        return cls([push for push in pushers if push.total < 0])

    @classmethod
    def up(cls, pushers: Sequence[Pusher]) -> Pulls:
        """Those of `pushers`, the hardest downwards first, that held up."""
        return cls([push for push in reversed(pushers) if push.total > 0])

    @cached_property
    def shares(self) -> Float[ndarray, " pushers"]:
        """Of the sum of all."""
        total = np.array([push.total for push in self.pushers])
        return total / total.sum()

    @property
    def half(self) -> int:
        """The fewest pairs that make half of the sum."""
        return int(np.searchsorted(self.shares.cumsum(), 0.5 - 1e-9)) + 1 if self.pushers else 0

    @property
    def concentrated(self) -> bool:
        """Whether one pair, or at most `FEW` and a tenth of those that pull, makes half."""
        return self.half == 1 or 0 < self.half <= min(FEW, len(self.pushers) / 10)


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

    def refilled(
        self, nats: Float[ndarray, "responses answers"], without: Collection[str]
    ) -> Float[ndarray, " answers"]:
        """What the remaining examples do in the places that others leave free, in nats.

        A training on fewer rows takes as many steps of as many examples: with S left out, others
        are drawn where S was, and each does what a remaining example does on average,

        `(p_S / p_R) Σ_{j∉S} ℓ_j`,

        p_S and p_R the places in batches of S and of the remaining examples; zero where none
        remains. So the forecast of training on rows without S is `−Σ_{i∈S} ℓ_i` and this; where
        batches and weights stay as they were (`TrainConfig.without`), it is the first term alone.

        **Arguments:** `nats`: the lines ℓ; `without`: ids of S.
        """
        gone = np.isin(self.examples, list(without))
        places = np.array([len(steps) for steps in self._steps_of])
        remaining = places[~gone].sum()
        if not remaining:
            return np.zeros(nats.shape[1])
        lines = nats[~np.isin(self.example, list(without))]
        filled: Float[ndarray, " answers"] = places[gone].sum() / remaining * lines.sum(0)
        return filled

    @cached_property
    def passes(self) -> float:
        """How often an example is in a batch, on average."""
        return float(np.mean([len(steps) for steps in self._steps_of]))

    def reordered(self, nats: Float[ndarray, "responses answers"]) -> Float[ndarray, " answers"]:
        """What another order of the same examples changes, in nats: a standard deviation.

        P places in batches over n examples are P/n a piece, and the order decides which examples
        have one more than others. With f the fraction of P/n and m_i what an example does in one
        of its places, on average, `√(f (1 − f) n/(n − 1) Σ_i (m_i − m̄)²)`. At which steps it has
        them matters, too, and is not in it. Zero where all have the same number of places.

        **Arguments:** `nats`: the lines of a whole training.
        """
        places = np.array([len(steps) for steps in self._steps_of])
        fraction = self.passes % 1
        did = np.stack([self.by_example(lines) for lines in nats.T]) / places
        count = len(places)
        variance = count * fraction * (1 - fraction) * did.var(1) * count / max(count - 1, 1)
        return np.sqrt(variance)

    def pushers(self, nats: Float[ndarray, " responses"]) -> list[Pusher]:
        """All examples, the one that pushed down hardest first."""
        chosen = self.side == "chosen"
        total = self.by_example(nats)
        from_chosen = self.by_example(np.where(chosen, nats, 0.0))
        from_rejected = self.by_example(np.where(chosen, 0.0, nats))
        return [
            Pusher(
                self.examples[place],
                float(total[place]),
                float(from_chosen[place]),
                float(from_rejected[place]),
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

    def without(self, examples: Collection[str], *, refilled: bool = True) -> dict[str, float]:
        """What leaving examples out of the training would change each account's end by, in nats.

        Minus the sum of their lines and, unless `refilled` is off, what others would do in their
        places (`Responses.refilled`): as in training on a file without their rows, NaN where that
        is not known (`why_unknown`). Infinite where first order does not reach so far
        (`within_room`).

        Later steps would have been others and make up for part of it: the sign is to be relied on,
        the size is about the most. Several examples that are left out of one step at once change it
        by more or less than the sum: `Ledger(groups=…)` has their lines together. A training on
        fewer rows has them in another order, and so differs from this by about
        `Responses.reordered`.

        **Arguments:** `examples`: ids; `refilled`: off where batches and weights stay as they were
        and the examples' losses alone are missing (`TrainConfig.without`).
        """
        weights = self.weights[np.searchsorted(self.steps, self.step)]
        lines = np.stack([weights * account.lines for account in self.accounts], axis=1)
        change = -lines[np.isin(self.example, list(examples))].sum(0)
        if refilled:
            unknown = [bool(self.why_unknown(account)) for account in self.accounts]
            change = np.where(unknown, np.nan, change + self.refilled(lines, examples))
        ends = np.array([account.bounded_end for account in self.accounts])
        changes = within_room(change, ends).tolist()
        names = [account.row.name for account in self.accounts]
        return dict(zip(names, changes, strict=True))

    def why_unknown(self, account: Account) -> str:
        """Why lines do not tell where a training on fewer rows ends; empty where they do."""
        if not account.steady:
            return (
                f"Its steps undid each other, {account.length:.3g} nats up and down for a change "
                f"of {abs(account.end - account.start):.3g}."
            )
        passes = self.passes * self.summary.every
        if passes < PASSES:
            return (
                f"Rows were trained on {passes:.1f} times on average, so that another order "
                "of them changes as much as which ones there are."
            )
        return ""

    def side_total(self, account: Account, side: str) -> Interval:
        """What all responses of a side did; exact, unless steps were sampled."""
        of_side = np.where(self.side == side, account.lines, 0.0)
        at_step = np.bincount(np.searchsorted(self.steps, self.step), of_side, len(self.steps))
        return stratified_total(at_step, self.weights)


def within_room(change: Float[ndarray, ...], end: Float[ndarray, ...]) -> Float[ndarray, ...]:
    """Forecast changes of log-probabilities that end at `end`, in nats.

    Infinite where the end would lie above 0, as none can: of such a change first order tells the
    direction alone.
    """
    return np.where(end + change > 0, np.inf, change)


def read_ledger(folder: Path, data: Path) -> LedgerReader:
    """Reads the results of a ledger stage and of the data stage that it was trained on."""
    summary = read_value(folder / "ledger.json", LedgerSummary)
    steps = read_arrays(read_table(folder, "steps"))
    lines = read_arrays(read_table(folder, "lines"))
    responses = read_arrays(read_table(folder, "responses"))
    weights = dict(zip(steps["step"].tolist(), steps["weight"].tolist(), strict=True))
    accounts = []
    for row in read_rows(folder / "functionals.jsonl", FunctionalRow):
        account = account_of(row.name, steps, lines, every_step=summary.whole)
        accounts.append(FunctionalAccount(row=row, **vars(account)))
    rows: dict[str, Example] = {}
    for split in ("heldout", "train"):
        file = data / f"{split}.jsonl"
        if file.exists():
            rows |= {row.id: row for row in read_rows(file, Example)}
    token_map = folder / "token_map.json"
    return LedgerReader(
        summary=summary,
        accounts=tuple(accounts),
        example=responses["example"],
        side=responses["side"],
        step=responses["step"],
        weights=np.array([weights[step] for step in sorted(set(responses["step"].tolist()))]),
        rows=rows,
        moments=_moments(folder, responses),
        blocks=_blocks(folder, weights),
        token_map=read_value(token_map, TokenMap) if token_map.exists() else None,
    )


def _blocks(folder: Path, weights: Mapping[int, int]) -> dict[str, dict[str, tuple[float, float]]]:
    """Sums over the steps, by functional and block, in the order of the model's parameters."""
    columns = read_table(folder, "blocks")
    sums: dict[str, dict[str, dict[str, float]]] = {}
    names = ("step", "block", "functional", "side", "nats")
    for step, block, functional, side, nats in zip(*(columns[n] for n in names), strict=True):
        of_functional = sums.setdefault(functional, {})
        by_side = of_functional.setdefault(block, {"chosen": 0.0, "rejected": 0.0})
        by_side[side] += weights[step] * nats
    blocks: dict[str, dict[str, tuple[float, float]]] = {}
    for functional, of_functional in sums.items():
        blocks[functional] = {}
        for block in sorted(of_functional, key=_depth):
            by_side = of_functional[block]
            blocks[functional][block] = by_side["chosen"], by_side["rejected"]
    return blocks


def _depth(block: str) -> tuple[int, int, str]:
    """Embeddings, then layers by their number, then what stands after them."""
    number = block.rpartition(".")[2]
    if number.isdigit():
        return 1, int(number), block
    return (0 if "emb" in block or block in ("wte", "wpe") else 2), 0, block


def _moments(folder: Path, responses: dict[str, Any]) -> dict[str, list[Moment]]:
    """Lines with their tokens, the hardest downwards first."""
    numbers = zip(responses["step"].tolist(), responses["response"].tolist(), strict=True)
    examples = zip(responses["example"].tolist(), responses["side"].tolist(), strict=True)
    labels = dict(zip(numbers, examples, strict=True))
    columns = read_table(folder, "tokens")
    tokens: dict[tuple[str, int, int], list[tuple[str, float]]] = {}
    names = ("functional", "step", "response", "token", "nats")
    for functional, step, response, token, nats in zip(*(columns[n] for n in names), strict=True):
        tokens.setdefault((functional, step, response), []).append((token, nats))
    moments: dict[str, list[Moment]] = {}
    for (functional, step, response), of_line in tokens.items():
        line = sum(nats for _, nats in of_line)
        moment = Moment(*labels[step, response], line, tuple(of_line))
        moments.setdefault(functional, []).append(moment)
    for of_functional in moments.values():
        of_functional.sort(key=lambda moment: moment.nats)
    return moments
