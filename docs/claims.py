"""The table of claims: what kept tables of runs decide, claim by claim and place by place.

    python docs/claims.py

writes it into `deploy/studies/README.md`, from `docs/claims.yaml` and the `results` there.
"""

from __future__ import annotations

import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tasks  # noqa: E402
from dynolab.claims.verdict import APPEARS, on_side  # noqa: E402
from dynolab.report.style import with_interval  # noqa: E402
from dynolab.report.tables import MARKS  # noqa: E402
from dynolab.statistics import Interval  # noqa: E402
from tasks.runtime.stage import Stage  # noqa: E402

STUDIES = ROOT / "deploy" / "studies"
COLUMNS = ("built-in worlds", "real data", "the authors' own runs")
BUILT_IN, REAL, AUTHORS = range(3)
PLACES = {
    "tinystories": (REAL, "HH"),
    "hh": (REAL, "HH harmless"),
    "helpful": (REAL, "HH helpful"),
    "stories": (REAL, "stories"),
    "mnist": (REAL, "MNIST"),
    "degeneration": (REAL, "HH"),
    "logs": (AUTHORS, ""),
    "strategies": (BUILT_IN, "two strategies"),
    "sums": (BUILT_IN, "sums"),
    "doses": (BUILT_IN, "equal margins"),
}
"""Last part of a table's name → its column, and where in it; `builtin` has none but digits."""
AUTHORS_FILE = "../logs/authors.yaml"
DIGITS = ("classification", "supervision", "transfer")
OUTCOMES = {word: outcome for outcome, word in APPEARS.items()}
FIRST, LAST = "<!-- claims: written by docs/claims.py -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class Cell:
    """One claim, tried in one place. `seeds`: how many, 1 for one run.

    `stale`: the version of a stage that it rests on has been raised since. `program`: what made
    the table, beside the results; a study file where it is None.
    """

    table: str
    column: int
    place: str
    outcome: str
    figures: tuple[Interval, ...]
    seeds: int
    stale: bool
    program: str | None

    @property
    def text(self) -> str:
        """Verdict, figures, units of the intervals, and the study file."""
        most = self.figures if len(self.figures) < 3 else (max(self.figures, key=lambda f: f.mean),)
        shown = ", ".join(with_interval(one, sign=False) for one in most)
        n = self.figures[0].n
        unit = "seeds" if n == self.seeds else "prompts" if self.column == AUTHORS else "cases"
        size = f"{n:,} {unit}" if n > 1 else "one run" if self.column != AUTHORS else "means alone"
        # The file of `mitigation-hh` has the settings of `-helpful`, too.
        study = f"./{self.table.removesuffix('-helpful').replace('-', '_')}.yaml"
        study = AUTHORS_FILE if self.column == AUTHORS else self.program or study
        place = f"{self.place}: " if self.place else ""
        mark = f"[{MARKS[self.outcome]}{'°' * self.stale}](./results/{self.table}.json)"
        return f"{mark} {place}{shown} ([{size}]({study}))"


def tables() -> dict[str, dict[str, Any]]:
    """Kept tables by name."""
    return {f.stem: json.loads(f.read_text()) for f in sorted((STUDIES / "results").glob("*.json"))}


@cache
def versions() -> dict[str, int]:
    """The present version of every stage."""
    modules = [import_module(f"tasks.{m.name}") for m in pkgutil.iter_modules(tasks.__path__)]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, Stage)]
    return {stage.name: stage.version for stage in found}


def stale(table: dict[str, Any]) -> list[str]:
    """Steps of which the stage's version has been raised since the table was made."""
    steps = table["stages"].items()
    return [
        step
        for step, made in steps
        if (made.get("version") or inf) < versions().get(made.get("stage"), 0)
    ]


def claims() -> dict[str, dict[str, list[Cell]]]:
    """Group → claim → where it was tried."""
    kept = tables()
    groups = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return {
        group: {claim: _best(_cells(source, kept)) for claim, source in own.items()}
        for group, own in groups.items()
    }


def _cells(source: str, kept: dict[str, dict[str, Any]]) -> Iterator[Cell]:
    bound = re.fullmatch(r"(.+) ([<>]) (\S+)", source)
    for name, table in kept.items():
        old, program = bool(stale(table)), table.get("program")
        column, place = PLACES.get(name.rpartition("-")[2], (BUILT_IN, ""))
        if column == BUILT_IN and name.startswith(DIGITS):
            place = "digits"
        seeds = len(table["seeds"]) if isinstance(table["seeds"], list) else 1
        if bound:
            figure, sign, limit = bound.groups()
            if (known := _interval(table, figure)) is not None:
                side = on_side(1 if sign == ">" else -1, "", known, float(limit))
                outcome = str(side.outcome)
                yield Cell(name, column, place, outcome, (known,), seeds, old, program)
            continue
        if name.endswith("degeneration"):
            continue  # compared with the start, so that its verdicts' ids mean something else
        ids = [id_ for id_ in table["verdicts"] if _is_of(id_, source, column)]
        for id_ in ids:
            outcome = OUTCOMES.get(table["verdicts"][id_], table["verdicts"][id_])
            longer = tuple(
                f"{other}/" for other in table["verdicts"] if other.startswith(f"{id_}/")
            )
            own = [f for f in table["estimates"] if f.startswith(f"{id_}/")]
            known = [_interval(table, f) for f in own if not (longer and f.startswith(longer))]
            where = id_.partition("/")[0] if column == AUTHORS else place
            if found := tuple(interval for interval in known if interval is not None):
                yield Cell(name, column, where, outcome, found, seeds, old, program)


def _is_of(id_: str, source: str, column: int) -> bool:
    """Whether a verdict is on a claim; those on runs of others begin with the run."""
    return (id_.partition("/")[2] if column == AUTHORS else id_) in source.split()


def _interval(table: dict[str, Any], name: str) -> Interval | None:
    known = table["estimates"].get(name)
    if known is None:
        numbers = table["numbers"]
        mean, low, high = (numbers.get(name + end, nan) for end in ("", "_low", "_high"))
        return None if isnan(mean) else Interval(mean, low, high, 1)
    if known["mean"] is None:
        return None
    low, high = (nan if known[end] is None else known[end] for end in ("low", "high"))
    return Interval(known["mean"], low, high, known["n"])


def _best(cells: Iterator[Cell]) -> list[Cell]:
    """Of the cells of one place, those over the most seeds, and of these what is not stale."""
    found = list(cells)
    most: dict[tuple[int, str], tuple[int, bool]] = {}
    for cell in found:
        at = (cell.column, cell.place)
        most[at] = max(most.get(at, (0, False)), (cell.seeds, not cell.stale))
    best = [c for c in found if (c.seeds, not c.stale) == most[c.column, c.place]]
    return list(
        {(cell.column, cell.place, cell.figures): cell for cell in reversed(best)}.values()
    )[::-1]


def counts() -> str:
    """How many claims were tried in each column, and how many hold, do not, and are unclear."""
    rows = [cells for own in claims().values() for cells in own.values()]
    lines = ["| | claims tried | hold | do not | differ by place | unclear |", "|---" * 6 + "|"]
    for column, name in enumerate(COLUMNS):
        tried = [{c.outcome for c in cells if c.column == column} for cells in rows]
        clear = [outcomes & {"holds", "fails"} for outcomes in tried if outcomes]
        found = [sum(own == kind for own in clear) for kind in ({"holds"}, {"fails"})]
        both, none = (sum(len(own) == n for own in clear) for n in (2, 0))
        lines.append(f"| {name} | {len(clear)} | {found[0]} | {found[1]} | {both} | {none} |")
    return "\n".join(lines)


def table() -> str:
    """The table in Markdown, with a heading row for every group."""
    lines = [f"| claim | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for group, own in claims().items():
        lines.append(f"| **{group}** |" + " |" * len(COLUMNS))
        for claim, cells in own.items():
            columns = ("<br>".join(c.text for c in cells if c.column == i) for i in range(3))
            lines.append(f"| {claim} | {' | '.join(columns)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The text of README.md with the present table between its marks."""
    before, _, rest = text.partition(FIRST)
    return f"{before}{FIRST}\n\n{counts()}\n\n{table()}\n\n{LAST}{rest.partition(LAST)[2]}"


if __name__ == "__main__":
    page = STUDIES / "README.md"
    page.write_text(with_table(page.read_text()))
