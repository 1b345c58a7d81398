"""Whether what pages advise holds where it can be checked at once.

    DYNOLAB_AXE=axe.min.js python -m tests.benchmarks.advice

Prints one JSON object, within two minutes. `DYNOLAB_AXE` is that file of the npm package axe-core;
without it `aria_faults` is not measured, and stderr says so.

- `commands_tried`: commands that the pages of a small study print, and those that train as a run
  of its remedies; `commands_wrong`: of these, the ones that fail or train other runs than they are
  printed for.
- `share_of_half_shown`: whether a study's first lines say how many pairs make half of a fall.
- `best_marks_that_lose`: of the stored tables of remedies, those whose best run clearly loses right
  answers or contests against the baseline. `tables_with_a_best`: those that name one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from docs import claims
from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.pair_arms import SPLITS
from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.ledger.fallen import half_of_a_fall, summed_pushers
from dynolab.report.page import ANSWER
from dynolab.report.study.page import write_report
from dynolab.report.tables import standings
from dynolab.results.ledger_reader import Pulls
from dynolab.statistics import Interval
from flows.study.flow import STUDY
from tests.benchmarks.figures import report
from tests.browsing import READERS, browser_page
from tests.explorer.serving import explorer
from tests.flows.in_process import InProcess
from tests.flows.printed import SETTINGS, Printed
from tests.report.ledgers import write_ledger
from tests.report.pairs import mitigation
from tests.report.synthetic import study

AT_LEAST = {"commands_tried": 8, "share_of_half_shown": True}
AT_MOST = {
    "best_marks_that_lose": 0,
    "commands_wrong": 0,
    "aria_faults": 0,
    "explorer_click_s": 2.0,
}
AXE = os.environ.get("DYNOLAB_AXE")
VIEWS = ("", "?view=pairs", "?view=what-if")
CLICKS = (
    "#view td a",  # a pair's map
    "a.token",
    ".answers li:nth-child(2) a",
    "#view td:last-child a",  # leave out
    "nav a:has-text('what if')",
    "a:has-text('IPO')",
    "nav a:has-text('pairs')",
    ".answers li:nth-child(3) a",
    "nav a:has-text('answers')",
    "nav .choices:has-text('beside') a:has-text('SFT')",
)
READY = "() => !window.view || window.view.innerText.length > 60"
ARRIVED = """before => document.querySelector("#status").innerText === ""
  && location.search !== before && document.querySelector("#view").innerText.length > 60"""


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
        estimate = self._estimates.get(name, {"mean": nan, "low": nan, "high": nan, "n": 0})
        low, high = (nan if estimate[end] is None else estimate[end] for end in ("low", "high"))
        return Interval(estimate["mean"], low, high, estimate["n"])


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
            losing += best.recommended and bool(loses)
    return {"best_marks_that_lose": losing, "tables_with_a_best": marked}


def commands(folder: Path) -> dict[str, int]:
    """Tries every command of a small study."""
    right = [right for _, right in Printed(folder).checks()]
    return {"commands_tried": len(right), "commands_wrong": right.count(False)}


def share_of_half(folder: Path) -> dict[str, bool]:
    """Reads the first lines of a study with an account made by hand."""
    account = write_ledger(folder)
    write_report(replace(study(), ledger=account), folder)
    first = (folder / ANSWER).read_text().splitlines()[:2]
    half = half_of_a_fall(Pulls.down(summed_pushers(account)))
    return {"share_of_half_shown": any(half in line for line in first)}


def aria_faults(addresses: Sequence[str]) -> dict[str, int]:
    """Over pages of which all folds are open; a first address with a token logs in to the rest."""
    if not AXE:
        print("aria_faults is missing: DYNOLAB_AXE names no axe.min.js", file=sys.stderr)
        return {}
    faults = 0
    for width, dark in READERS:
        with browser_page(width, dark=dark) as (page, _):
            for address in addresses:
                page.goto(address)
                page.wait_for_function(READY)
                page.evaluate(
                    "document.querySelectorAll('details').forEach(e => { e.open = true })"
                )
                page.wait_for_timeout(2000)  # figures are drawn when there is time
                page.evaluate(Path(AXE).read_text())
                for fault in page.evaluate("axe.run().then(done => done.violations)"):
                    print(address, width, fault["id"], fault["nodes"][0]["html"], file=sys.stderr)
                    faults += 1
    return {"aria_faults": faults}


def explorer_clicks(link: str) -> dict[str, float]:
    """Clicks one after the other, ten seconds after the first view is there."""
    slowest = 0.0
    with browser_page(READERS[0][0]) as (page, _):
        page.goto(link)
        page.locator("#view td a").first.wait_for(timeout=120_000)
        page.wait_for_timeout(10_000)
        for place in CLICKS:
            before = page.evaluate("location.search")
            began = time.perf_counter()
            page.locator(place).first.click()
            page.wait_for_function(ARRIVED, arg=before, timeout=120_000)
            slowest = max(slowest, time.perf_counter() - began)
    return {"explorer_click_s": slowest}


def seen(home: Path, pages: Path) -> dict[str, float]:
    """What a browser tells of the pages, and of the explorer on a small study with a ledger."""
    lab, preference = InProcess(home), SETTINGS["preference"] | {"record_steps": [0, 1]}
    more = {"preference": preference, "ledger": {"pairs": 2, "answers": 2}}
    lab.run_plan(lab.plan(STUDY, SETTINGS | more))
    write_mitigation_page(mitigation(), pages)
    files = [(pages / name).as_uri() for name in ("report.html", "mitigation.html")]
    with explorer(home) as link:
        views = [link, *(link.partition("?")[0] + view for view in VIEWS)]
        return explorer_clicks(link) | aria_faults([*files, *views])


def main() -> None:
    """Prints the figures beside their bars."""
    with TemporaryDirectory() as home, TemporaryDirectory() as pages:
        figures: dict[str, Any] = (
            commands(Path(home)) | share_of_half(Path(pages)) | best_marks_that_lose()
        )
        figures |= seen(Path(home, "home"), Path(pages))
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
