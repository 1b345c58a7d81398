"""The table of claims: what kept tables of runs decide, claim by claim and place by place.

    python docs/claims.py

writes it into `deploy/studies/README.md`, from `docs/claims.yaml` and the `results` there.
"""

from __future__ import annotations

import json
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import false_discovery_control, t as student

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tasks  # noqa: E402
from dynolab.claims.verdict import APPEARS, on_side  # noqa: E402
from dynolab.report.style import with_interval  # noqa: E402
from dynolab.report.tables import MARKS  # noqa: E402
from dynolab.statistics import Interval, student_975  # noqa: E402
from tasks.runtime.stage import Stage  # noqa: E402

STUDIES = ROOT / "deploy" / "studies"
COLUMNS = ("made worlds", "a rule's own samples", "real data", "the authors' own runs")
MADE, SAMPLED, REAL, AUTHORS = range(len(COLUMNS))
PLACES = {
    "tinystories": (REAL, "HH"),
    "hh": (REAL, "HH harmless"),
    "helpful": (REAL, "HH helpful"),
    "stories": (SAMPLED, "stories"),
    "mnist": (REAL, "MNIST"),
    "degeneration": (REAL, "HH"),
    "removals": (REAL, "HH helpful"),
    "logs": (AUTHORS, ""),
    "strategies": (MADE, "two strategies"),
    "sums": (MADE, "sums"),
    "doses": (MADE, "equal margins"),
    "objectives": (MADE, "thirteen losses"),
    "scaling": (MADE, "scaled rewards"),
    "entropy": (MADE, "two strategies, two updates of a rollout"),
    "harmless": (MADE, "insults"),
}
"""Last part of a table's name → its column, and where in it; `builtin` has none but digits."""
MADE_TASKS = ("speed/coherent-contradictory", "adaptation")
"""Claims on made tasks, which a study of images tries beside."""

MARKS_HERE = MARKS | {"most": "✓ mostly", "no difference": "="}
"""Marks of the table, those of verdicts among them."""

NO_DIFFERENCE = {"nats": 1.0, "share": 0.05, "AUC": 0.05, "ρ": 0.1, "points": 1.0, "Δp": 0.005}
"""Differences, by the unit that a claim or its group names, that are too small to speak of."""

FEW_CASES = 5.0
"""Percent of cases the other way, above which a claim about cases holds for most of them."""

BOUNDS = {"forces": 0.1, "step": 0.1, "auc": 0.5, "zigzag": 0.5, "won": 0.5, "label_falls": 0.5}
"""Last part of a claim's name → what its figure is compared with, where that is not 0."""

AUTHORS_FILE = "../logs/authors.yaml"
DIGITS = ("classification", "supervision", "transfer")
OUTCOMES = {word: outcome for outcome, word in APPEARS.items()}
FIRST, LAST = "<!-- claims: written by docs/claims.py -->", "<!-- end of claims -->"


@dataclass(frozen=True)
class Cell:
    """One claim, tried in one place. `seeds`: how many, 1 for one run.

    `stale`: the version of a stage that it rests on has been raised since. `program`: what made
    the table, beside the results; a study file where it is None. `p`: of the figure that decides
    least; None for claims about cases, and without an interval. `q`: the share of false claims
    that is expected among all with a `p` as small (Benjamini & Hochberg 1995).
    """

    table: str
    column: int
    place: str
    outcome: str
    figures: tuple[Interval, ...]
    seeds: int
    stale: bool
    program: str | None
    p: float | None = None
    q: float | None = None

    @property
    def text(self) -> str:
        """Verdict, figures, units of the intervals, and the study file."""
        most = self.figures if len(self.figures) < 3 else (max(self.figures, key=lambda f: f.mean),)
        shown = ", ".join(with_interval(one, sign=False) for one in most)
        n = self.figures[0].n
        unit = "seeds" if n == self.seeds else "prompts" if self.column == AUTHORS else "cases"
        size = f"{n:,} {unit}" if n > 1 else "one run" if self.column != AUTHORS else "means alone"
        if self.figures[0].pairs is not None:
            size += f" and {self.figures[0].pairs:,} pairs"
        # The file of `mitigation-hh` has the settings of `-helpful`, too.
        study = f"./{self.table.removesuffix('-helpful').replace('-', '_')}.yaml"
        study = AUTHORS_FILE if self.column == AUTHORS else self.program or study
        place = f"{self.place}: " if self.place else ""
        mark = f"[{MARKS_HERE[self.outcome]}{'°' * self.stale}](./results/{self.table}.json)"
        chance = "" if self.q is None else f", q {'<' if self.q < 0.001 else ''}{_digits(self.q)}"
        return f"{mark} {place}{shown} ([{size}]({study}){chance})"


def _digits(q: float) -> str:
    return "0.001" if q < 0.001 else f"{q:.3f}" if q < 0.01 else f"{q:.2f}"


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


class UniqueKeys(yaml.SafeLoader):
    """Refuses a claim that stands twice in a group: YAML would keep the last alone."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping; **raises** `ValueError` for a name that stands twice."""
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} stands twice in a group: give claims different names")
        return super().construct_mapping(node, deep)


def read_claims(text: str) -> dict[str, dict[str, str]]:
    """Group → claim → what decides it."""
    groups: dict[str, dict[str, str]] = yaml.load(text, UniqueKeys)
    return groups


def claims() -> dict[str, dict[str, list[Cell]]]:
    """Group → claim → where it was tried, each with its `q` among all of them."""
    stored = tables()
    groups = read_claims(Path(__file__).with_suffix(".yaml").read_text())
    tried: dict[str, dict[str, list[Cell]]] = {}
    for group, sources in groups.items():
        tried[group] = {}
        for claim, source in sources.items():
            tried[group][claim] = _best(_cells(source, _unit(group, claim), stored))
    chances = [cell.p for cells in _all(tried) for cell in cells if cell.p is not None]
    shares = dict(zip(chances, false_discovery_control(chances), strict=True))
    for claims_of_group in tried.values():
        for claim, cells in claims_of_group.items():
            claims_of_group[claim] = [
                cell if cell.p is None else replace(cell, q=float(shares[cell.p])) for cell in cells
            ]
    return tried


def _all(tried: dict[str, dict[str, list[Cell]]]) -> list[list[Cell]]:
    return [cells for group in tried.values() for cells in group.values()]


def _unit(group: str, claim: str) -> str:
    """The unit that a claim names in its last brackets, or its group."""
    for text in (claim, group):
        for unit in NO_DIFFERENCE:
            if re.search(rf"[(; ]{unit}s?\b[^()]*\)", text):
                return unit
    return ""


def _cells(source: str, unit: str, stored: dict[str, dict[str, Any]]) -> Iterator[Cell]:
    bound = re.fullmatch(r"(.+) ([<>]) (\S+)", source)
    for name, table in stored.items():
        old, program = bool(stale(table)), table.get("program")
        column, place = PLACES.get(name.rpartition("-")[2], (MADE, ""))
        if column == MADE and name.startswith(DIGITS):
            column, place = REAL, "digits"
        if source.startswith(MADE_TASKS):
            column, place = MADE, "made tasks"
        seeds = len(table["seeds"]) if isinstance(table["seeds"], list) else 1
        if bound:
            figure, sign, limit = bound.groups()
            interval = _interval(table, figure)
            if interval is not None:
                side = on_side(1 if sign == ">" else -1, "", interval, float(limit))
                outcome = _finer(str(side.outcome), (interval,), float(limit), unit)
                p = _p([interval], float(limit))
                yield Cell(name, column, place, outcome, (interval,), seeds, old, program, p)
            continue
        if name.endswith("degeneration"):
            continue  # compared with the start, so that its verdicts' ids mean something else
        ids = [id_ for id_ in table["verdicts"] if _is_of(id_, source, column)]
        for id_ in ids:
            outcome = OUTCOMES.get(table["verdicts"][id_], table["verdicts"][id_])
            figures = _figures(table, id_)
            where = id_.partition("/")[0] if column == AUTHORS else place
            if figures:
                intervals = tuple(figures.values())
                about_cases = id_.startswith("softmax/")
                limit = BOUNDS.get(id_.rpartition("/")[2], 0.0)
                outcome = _finer(outcome, intervals, limit, unit, about_cases=about_cases)
                p = None if about_cases else _p(intervals, limit)
                yield Cell(name, column, where, outcome, intervals, seeds, old, program, p)


def _figures(table: dict[str, Any], id_: str) -> dict[str, Interval]:
    """The figures of a verdict by name, without those of verdicts whose id begins with its own."""
    longer = tuple(f"{other}/" for other in table["verdicts"] if other.startswith(f"{id_}/"))
    figures = {}
    for name in table["estimates"]:
        if name.startswith(f"{id_}/") and not (longer and name.startswith(longer)):
            interval = _interval(table, name)
            if interval is not None:
                figures[name] = interval
    return figures


def _finer(
    outcome: str,
    figures: Sequence[Interval],
    limit: float,
    unit: str,
    *,
    about_cases: bool = False,
) -> str:
    """An outcome told apart further: one that holds in most cases, or shows no difference."""
    if about_cases and outcome == "holds" and max(f.mean for f in figures) > FEW_CASES:
        return "most"
    least = NO_DIFFERENCE.get(unit, 0.0)
    within = all(limit - least <= f.low and f.high <= limit + least for f in figures)
    return "no difference" if outcome == "unclear" and within else outcome


def _p(figures: Sequence[Interval], limit: float) -> float | None:
    """Two-sided p of the figure that differs least from its bound, from its 95 % interval.

    `t = |mean − bound| t₀.₉₇₅(n−1) / half`. None where a figure has no interval. A claim rests on
    all its figures, so that the largest p is its own.
    """
    chances = []
    for figure in figures:
        half = (figure.high - figure.low) / 2
        if not isfinite(half) or half <= 0:
            return None
        degrees = max(figure.n - 1, 1)
        chances.append(
            2 * student.sf(abs(figure.mean - limit) * student_975(degrees) / half, degrees)
        )
    return float(max(chances)) if chances else None


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
    return Interval(known["mean"], low, high, known["n"], known.get("pairs"))


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
    """How many claims were tried in each column, and what came of them."""
    rows = _all(claims())
    kinds = {
        "hold": {"holds"},
        "hold for most": {"most"},
        "do not": {"fails"},
        "no difference": {"no difference"},
    }
    lines = [
        f"| | claims tried | {' | '.join(kinds)} | differ by place | unclear |",
        "|---" * (4 + len(kinds)) + "|",
    ]
    for column, name in enumerate(COLUMNS):
        tried = [{cell.outcome for cell in cells if cell.column == column} for cells in rows]
        clear = [outcomes - {"unclear", "not measured"} for outcomes in tried if outcomes]
        numbers = [sum(outcomes == kind for outcomes in clear) for kind in kinds.values()]
        several = sum(len(outcomes) > 1 for outcomes in clear)
        unclear = sum(not outcomes for outcomes in clear)
        cells = [len(clear), *numbers, several, unclear]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def table() -> str:
    """The table in Markdown, with a heading row for every group."""
    lines = [f"| claim | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for group, claims_of_group in claims().items():
        lines.append(f"| **{group}** |" + " |" * len(COLUMNS))
        for claim, cells in claims_of_group.items():
            columns = (
                "<br>".join(cell.text for cell in cells if cell.column == column)
                for column in range(len(COLUMNS))
            )
            lines.append(f"| {claim} | {' | '.join(columns)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The text of README.md with the present table between its marks."""
    before, _, rest = text.partition(FIRST)
    return f"{before}{FIRST}\n\n{counts()}\n\n{table()}\n\n{LAST}{rest.partition(LAST)[2]}"


if __name__ == "__main__":
    page = STUDIES / "README.md"
    page.write_text(with_table(page.read_text()))
