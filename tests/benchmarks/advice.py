"""Whether what pages advise holds where it can be checked at once.

    python -m tests.benchmarks.advice

Prints one JSON object; nothing is trained.

- `best_marks_that_lose`: of the stored tables of remedies, those whose best run clearly loses right
  answers or contests against the baseline. `tables_with_a_best`: those that name one.
"""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np

from docs import claims
from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.pair_arms import SPLITS
from dynolab.report.tables import standings
from dynolab.statistics import Interval
from tests.benchmarks.figures import report

AT_MOST = {"best_marks_that_lose": 0}


class StoredTable(ArmTable):
    """The means and differences of a stored table; `baseline`: the run without differences."""

    def __init__(self, table: dict[str, Any]) -> None:
        self._estimates = table["estimates"]
        runs = dict.fromkeys(k.split("/")[1] for k in self._estimates if k.startswith("means/"))
        self.runs = [run for run in runs if f"differences/{run}/train/chosen" in self._estimates]
        (self.baseline,) = runs.keys() - {*self.runs}
        super().__init__({})

    @property
    def names(self) -> list[str]:
        """Figures of any run."""
        parts = [name.split("/", 2) for name in self._estimates if name.count("/") > 1]
        return [f"matched/{part[2]}" if part[0] == "matched" else part[2] for part in parts]

    def mean(self, arm: str, name: str) -> Interval:
        return self._interval(f"means/{arm}/{name}")

    def difference(self, arm: str, other: str, name: str) -> Interval:
        split, _, figure = name.partition("/")
        matched = f"matched/{arm}/{figure}"
        return self._interval(matched if split == "matched" else f"differences/{arm}/{name}")

    def _interval(self, name: str) -> Interval:
        known = self._estimates.get(name, {"mean": nan, "low": nan, "high": nan, "n": 0})
        ends = [nan if known[end] is None else known[end] for end in ("mean", "low", "high")]
        return Interval(*ends, known["n"])


def best_marks_that_lose() -> dict[str, int]:
    """Over all stored tables of remedies."""
    marked, losing = 0, 0
    for name, table in claims.tables().items():
        if name.startswith("mitigation-"):
            stored = StoredTable(table)
            best = standings(stored, stored.runs, stored.baseline)[0]
            marked += best.recommended
            falls = [stored.difference(best.run, "", f"{split}/right").high for split in SPLITS]
            loses = stored.mean(best.run, "heldout/won").high < 0.5 or np.nanmin([0, *falls]) < 0
            losing += best.recommended and loses
    return {"best_marks_that_lose": losing, "tables_with_a_best": marked}


def main() -> None:
    """Prints the figures beside their bars."""
    report(best_marks_that_lose(), at_most=AT_MOST)


if __name__ == "__main__":
    main()
