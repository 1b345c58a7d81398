"""Sums of lines: who pushed an answer, whom a pair pushed, and what would be without it.

The lines are those of recorded steps (`step`), or those that the study's ledger has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, Shaped
from numpy import ndarray

from dynolab.data.rows import ProbeRow
from dynolab.results.ledger import FunctionalAccount, FunctionalRow
from dynolab.results.ledger_reader import LedgerReader, Pusher, Responses

CHOSEN, REJECTED = "chosen", "rejected"

TOGETHER = "all answers together"
"""What answers did by sharing a clip factor and a second moment, which none of them did alone."""


@dataclass(frozen=True)
class Lines:
    """What every response of some steps did to some answers, in nats.

    Row i of `nats` belongs to the response of `pair[i]` on `side[i]` at step `step[i]`; a column is
    an answer. `measured`: the answers' change over these steps; `apart`: what else moved them, such
    as weight decay, by name. `left_out`: what the steps would have lacked without all pairs that
    were asked about (`Asked.without`); without it their lines are added up.
    """

    step: Int[ndarray, " responses"]
    pair: Shaped[ndarray, " responses"]
    side: Shaped[ndarray, " responses"]
    nats: Float[ndarray, "responses answers"]
    measured: Float[ndarray, " answers"]
    apart: Mapping[str, Float[ndarray, " answers"]] = field(default_factory=dict)
    left_out: Float[ndarray, " answers"] | None = None

    @classmethod
    def together(cls, parts: Sequence[Lines]) -> Lines:
        """Several steps' lines to the same answers."""
        names = dict.fromkeys(name for part in parts for name in part.apart)
        none = np.zeros_like(parts[0].measured)
        return cls(
            step=np.concatenate([part.step for part in parts]),
            pair=np.concatenate([part.pair for part in parts]),
            side=np.concatenate([part.side for part in parts]),
            nats=np.concatenate([part.nats for part in parts]),
            measured=np.sum([part.measured for part in parts], axis=0),
            apart={
                name: np.sum([part.apart.get(name, none) for part in parts], axis=0)
                for name in names
            },
            left_out=_joined([part.left_out for part in parts], partial(np.sum, axis=0)),
        )

    @classmethod
    def beside(cls, parts: Sequence[Lines]) -> Lines:
        """The same steps' lines to several groups of answers."""
        return replace(
            parts[0],
            nats=np.concatenate([part.nats for part in parts], axis=1),
            measured=np.concatenate([part.measured for part in parts]),
            apart={
                name: np.concatenate([part.apart[name] for part in parts])
                for name in parts[0].apart
            },
            left_out=_joined([part.left_out for part in parts], np.concatenate),
        )

    def at_step(self, step: int, measured: Float[ndarray, " answers"]) -> Lines:
        """The lines of one step, over which the answers changed by `measured`."""
        of_step = self.step == step
        return Lines(
            self.step[of_step], self.pair[of_step], self.side[of_step], self.nats[of_step], measured
        )

    def of_pair(self, pair: str) -> Lines:
        """The lines of one pair's answers, with the whole change that is measured."""
        of_pair = self.pair == pair
        return replace(
            self,
            step=self.step[of_pair],
            pair=self.pair[of_pair],
            side=self.side[of_pair],
            nats=self.nats[of_pair],
        )

    def to(self, answer: int) -> Lines:
        """The lines to one answer."""
        here = slice(answer, answer + 1)
        return replace(
            self,
            nats=self.nats[:, here],
            measured=self.measured[here],
            apart={name: values[here] for name, values in self.apart.items()},
            left_out=None if self.left_out is None else self.left_out[here],
        )

    @property
    def pairs(self) -> list[str]:
        """The pairs that have lines, by id."""
        return self._responses.examples

    def through(self, side: str) -> Float[ndarray, " answers"]:
        """What all responses of a side did."""
        summed: Float[ndarray, " answers"] = self.nats[self.side == side].sum(0)
        return summed

    @property
    def residual(self) -> Float[ndarray, " answers"]:
        """What the lines and `apart` leave of the measured change."""
        left = self.measured - self.nats.sum(0)
        return left - sum(self.apart.values(), np.zeros_like(left))

    def pushers(self, answer: int) -> list[Pusher]:
        """Every pair's push on an answer, the one that pushed down hardest first."""
        return self._responses.pushers(self.nats[:, answer])

    def pushed_by(self, pair: str) -> list[Pusher]:
        """A pair's push on every answer, in the order of the answers; empty without lines."""
        lines = self.of_pair(pair)
        return [push for answer in range(self.nats.shape[1]) for push in lines.pushers(answer)]

    def what_if(
        self, without: Collection[str] = (), dose: float = 1.0, instead: Lines | None = None
    ) -> Float[ndarray, " answers"]:
        """The change of every answer, to first order: what is left out is taken away, each other
        line is times the factor that it keeps, and the remaining pairs take the places that are
        free (`Responses.refilled`), as in a training on the other pairs.

        The weights, and so all other lines, stay what they were.

        **Arguments:** `without`: pairs that are left out, those of `left_out` if there is one;
        `dose`: a factor on all rejected answers; `instead`: the lines of the same responses under
        another objective, which take the place of these.
        """
        lines = self if instead is None else instead
        gone = np.isin(self.pair, list(without))
        left_out = lines.nats[gone].sum(0) if lines.left_out is None else lines.left_out
        rejected = ~gone & (self.side == REJECTED)
        dosed = np.where(rejected[:, None], dose, 1.0) * lines.nats
        would: Float[ndarray, " answers"] = self.measured - self.nats.sum(0) + dosed.sum(0)
        return would - left_out + self._responses.refilled(dosed, without)

    @property
    def reordered(self) -> Float[ndarray, " answers"]:
        """What another order of the pairs changes (`Responses.reordered`), of a whole training."""
        return self._responses.reordered(self.nats)

    def save(self, file: Path) -> None:
        """Writes an npz file."""
        apart = {f"apart {name}": values for name, values in self.apart.items()}
        arrays = {
            name: getattr(self, name) for name in ("step", "pair", "side", "nats", "measured")
        }
        if self.left_out is not None:
            arrays["left_out"] = self.left_out
        np.savez(file, allow_pickle=False, **arrays, **apart)

    @classmethod
    def load(cls, file: Path) -> Lines:
        """Reads what `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            columns = dict(arrays)
        apart = {
            name.removeprefix("apart "): columns.pop(name)
            for name in list(columns)
            if name.startswith("apart ")
        }
        return cls(**columns, apart=apart)

    @cached_property
    def _responses(self) -> Responses:
        return Responses(self.pair, self.side, self.step)


def lines_to_means(
    ledger: LedgerReader | None, *, singles: bool = False
) -> tuple[list[FunctionalRow], Lines] | None:
    """The lines to the mean of every kind, over all steps; with `singles` to single answers, too.

    None without a ledger, and where steps were only sampled.
    """
    if ledger is None or ledger.sampled:
        return None
    means = [account for account in ledger.accounts if singles or not account.row.single]
    if not means:
        return None
    lines = Lines.beside([_whole(ledger, account) for account in means])
    return [account.row for account in means], lines


def lines_to_answer(
    ledger: LedgerReader | None, row: ProbeRow, step: int | None = None
) -> Lines | None:
    """The lines to one answer, over all steps or of one.

    None without an account of its own, for a step that has none, and where steps were only sampled.
    """
    if ledger is None or ledger.sampled:
        return None
    for account in ledger.accounts:
        facts = account.row
        if facts.single and (facts.name, facts.split, facts.kind) == (
            row.pair_id,
            row.split,
            row.kind,
        ):
            lines = _whole(ledger, account)
            if step is None:
                return lines
            if step not in ledger.steps:
                return None
            moved = np.diff(account.path)[ledger.steps.index(step)]
            return lines.at_step(step, np.array([moved]))
    return None


def _whole(ledger: LedgerReader, account: FunctionalAccount) -> Lines:
    return Lines(
        step=ledger.step,
        pair=ledger.example,
        side=ledger.side,
        nats=account.lines[:, None],
        measured=np.array([account.end - account.start]),
        apart={
            TOGETHER: np.array([account.together]),
            "weight decay": np.array([account.decay]),
            "earlier momentum": np.array([account.carried_in]),
        },
    )


def _joined(
    values: Sequence[ndarray | None], join: Callable[[list[ndarray]], ndarray]
) -> ndarray | None:
    """Values of several lines; None where some have none."""
    present = [value for value in values if value is not None]
    return join(present) if len(present) == len(values) else None
