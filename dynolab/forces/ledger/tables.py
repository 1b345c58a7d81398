"""A ledger's entries as tables (`dynolab.results.ledger`), and how well they close."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dynolab.forces.ledger.sources import SourceMeasures
from dynolab.forces.ledger.step_account import SIDES, StepAccount
from dynolab.results.ledger import TABLES, LedgerSummary, read_table, write_table

PER_STEP = ("before", "after", "predicted", "rounding", "decay", "carried_in", "unexplained")


class HardestPull(NamedTuple):
    """What lowered a functional most: an example, at a step."""

    functional: str
    example: str
    step: int


class LedgerTables:
    """Collects entries, the last step first.

    **Arguments:** `names`: of the functionals; `read_token`: a token's text by its id; `whole`,
    `every`: of `LedgerSummary`.
    """

    def __init__(
        self,
        names: Sequence[str],
        read_token: Callable[[int], str] = str,
        *,
        whole: bool = True,
        every: int = 1,
    ) -> None:
        self._names, self._read_token = list(names), read_token
        self._whole, self._every = whole, every
        self._tables: dict[str, dict[str, list[object]]] = {
            name: {column: [] for column in columns} for name, columns in TABLES.items()
        }

    @property
    def entered(self) -> int:
        """How many steps' entries there are."""
        return len(set(self._tables["steps"]["step"]))

    def add(self, entries: StepAccount, weight: int = 1) -> None:
        """Appends the entries of a step that stands for `weight` steps."""
        count = len(entries.responses)
        self._append(
            "steps",
            step=[entries.step] * len(self._names),
            functional=self._names,
            weight=[weight] * len(self._names),
            **{column: getattr(entries, column).tolist() for column in PER_STEP},
        )
        self._append(
            "responses",
            step=[entries.step] * count,
            response=list(range(count)),
            example=[response.id for response in entries.responses],
            side=[response.side for response in entries.responses],
            tokens=[list(response.tokens) for response in entries.responses],
        )
        self._append(
            "lines",
            step=[entries.step] * entries.lines.numel(),
            response=[number for number in range(count) for _ in self._names],
            functional=self._names * count,
            nats=entries.lines.flatten().tolist(),
        )
        for block, sums in entries.blocks.items():
            self._append(
                "blocks",
                step=[entries.step] * sums.numel(),
                block=[block] * sums.numel(),
                functional=[name for name in self._names for _ in SIDES],
                side=[*SIDES] * len(self._names),
                nats=sums.flatten().tolist(),
            )
        for split in entries.tokens:
            length = len(split.nats)
            self._append(
                "tokens",
                step=[entries.step] * length,
                response=[split.response] * length,
                functional=[self._names[split.functional]] * length,
                place=list(range(length)),
                token=[*map(self._read_token, entries.responses[split.response].tokens)],
                nats=split.nats.tolist(),
            )

    def add_sources(self, measures: Sequence[SourceMeasures]) -> None:
        """Appends the papers' measures of one step."""
        for each in measures:
            self._append("sources", **{name: [value] for name, value in vars(each).items()})

    def _append(self, table: str, **columns: Sequence[object]) -> None:
        for name, values in columns.items():
            self._tables[table][name] += values

    def write(self, folder: Path) -> None:
        """Writes the tables into a folder."""
        for name, columns in self._tables.items():
            write_table(folder, name, columns)

    def load(self, folder: Path) -> None:
        """Goes on from tables that were written."""
        for name in self._tables:
            self._append(name, **read_table(folder, name))

    def hardest_pull(self, names: Sequence[str]) -> HardestPull | None:
        """Of some functionals the one that fell most, and what pulled it down; None if none fell.

        The example is the one that in sum lowered it most, the step the one of its steps that did.
        """
        steps, lines, responses = map(self._arrays, ("steps", "lines", "responses"))
        moved = steps["after"].astype(float) - steps["before"].astype(float)
        fell = {name: float(moved[steps["functional"] == name].sum()) for name in names}
        worst = min(fell, key=fell.__getitem__, default=None)
        if worst is None or fell[worst] >= 0:
            return None
        keys = zip(responses["step"].tolist(), responses["response"].tolist(), strict=True)
        example = dict(zip(keys, responses["example"].tolist(), strict=True))
        by_step: dict[tuple[str, int], float] = defaultdict(float)
        in_sum: dict[str, float] = defaultdict(float)
        mine = lines["functional"] == worst
        for step, response, nats in zip(
            *(lines[name][mine].tolist() for name in ("step", "response", "nats")), strict=True
        ):
            by_step[example[step, response], step] += nats
            in_sum[example[step, response]] += nats
        puller = min(in_sum, key=in_sum.__getitem__)
        own = {step: nats for (name, step), nats in by_step.items() if name == puller}
        return HardestPull(worst, puller, min(own, key=own.__getitem__))

    def summary(self) -> LedgerSummary:
        """How well the account closes."""
        steps, lines = self._arrays("steps"), self._arrays("lines")
        by_step = dict(zip(steps["step"].tolist(), steps["weight"].tolist(), strict=True))
        stands_for = np.array([by_step[step] for step in lines["step"].tolist()])
        closures, shares, rounded = [], [], []
        for name in self._names:
            own = steps["functional"] == name
            order = np.argsort(steps["step"][own])
            before, after, predicted, rounding, decay, carried_in, beside, weight = (
                steps[column][own][order].astype(float) for column in (*PER_STEP, "weight")
            )
            change = after - before
            path = (weight * np.abs(change)).sum()
            residual = (weight * (change - predicted)).sum()
            mine = lines["functional"] == name
            nats = (stands_for[mine] * lines["nats"][mine].astype(float)).sum()
            momentum = carried_in[0] if self._whole else carried_in.sum()
            explained = nats + (weight * (decay + rounding + beside)).sum() + momentum
            measured = change.sum() if self._every == 1 else after[-1] - before[0]
            # What never moved has no path, and nothing that could fail to close.
            closures.append(abs(explained + residual - measured) / (path or 1.0))
            shares.append(abs(residual) / (path or 1.0))
            rounded.append(abs((weight * rounding).sum()) / (path or 1.0))
        return LedgerSummary(
            steps=len(by_step),
            responses=len(self._tables["responses"]["step"]),
            closure=max(closures),
            residual_share=max(shares),
            rounding_share=max(rounded),
            whole=self._whole,
            every=self._every,
        )

    def _arrays(self, table: str) -> dict[str, np.ndarray]:
        return {
            name: np.array(values)
            for name, values in self._tables[table].items()
            if name != "tokens"
        }
