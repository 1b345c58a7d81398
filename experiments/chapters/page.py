"""The page of a chapter: what is claimed, what was measured, and the figures that show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.verdict import Outcome, Verdict
from dynolab.data.rows import write_rows
from dynolab.report.figure import CELLS, Figure, subplots
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Page, Section, section, write_page
from dynolab.report.plots import Line
from dynolab.report.style import DIVERGING, SEQUENTIAL
from dynolab.report.tables import counts_of, outcome_counts, verdict_table
from dynolab.results.study import records
from dynolab.statistics import mean_interval

_COUNTED: Mapping[Outcome, str] = {"holds": "hold", "fails": "fail"}
_HOW_JUDGED = (
    "Holds: every interval lies on the expected side of its bound; fails: one lies wholly on the "
    "other side; unclear: neither. A claim about every case fails if one case violates it."
)

BANDS = "Means over seeds; bands and brackets: 95% t-intervals over seeds."


@dataclass(frozen=True)
class Facts:
    """What a page shows of the run's settings.

    `learning_rates`: those of the kernels in their order, or the one that figures of class pairs
    show; `digits`: the classes are the ten digits.
    """

    learning_rates: Sequence[float] = ()
    digits: bool = False


@dataclass(frozen=True)
class Chapter:
    """Everything the page shows.

    `lead`: a paragraph on what was done; `content`: figures and tables in order; `source`: who made
    the claims, and what the intervals are over.
    """

    title: str
    lead: str
    verdicts: Sequence[Verdict]
    content: Sequence[Figure | Section | None]
    source: str = ""


def write_chapter(
    chapter: Chapter,
    folder: Path,
    file: str,
    *,
    name: str = "",
    settings: str = "",
    stages: Sequence[StageFacts] = (),
) -> dict[str, float]:
    """Writes the self-contained page, `claims.jsonl`, and every figure in `figures/`.

    **Returns** the number of claims by verdict, as `claims/<verdict>`.
    """
    verdicts = chapter.verdicts
    counts = counts_of(verdicts, _COUNTED)
    claims = section(
        "claims",
        "What holds",
        f"Of {len(verdicts)} claims, {counts}." if verdicts else "This chapter makes no claims.",
        verdict_table("about", verdicts, words={}),
        note=f"{chapter.source} {_HOW_JUDGED}".strip(),
    )
    page = Page(
        name=name,
        heading=chapter.title,
        lead=chapter.lead,
        content=[claims, *chapter.content],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, file)
    write_rows(folder / "claims.jsonl", verdicts)
    return outcome_counts(verdicts, {})


def read_frame(folders: Iterable[Path], file: str) -> pd.DataFrame:
    """The rows of a file of JSON lines in every folder, folder by folder."""
    return pd.DataFrame([row for folder in folders for row in records(folder, file)])


def select(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values in these columns; an empty frame needs no columns."""
    for column, value in values.items():
        rows = rows[rows[column] == value] if len(rows) else rows
    return rows


def path_line(name: str, x: Sequence[float], values: Float[ndarray, "seeds x"]) -> Line:
    """Means over seeds of one path for each seed."""
    return Line(name, x, [mean_interval(at) for at in np.asarray(values, dtype=float).T])


def lines_by(rows: pd.DataFrame, line: str, x: str, value: str) -> list[Line]:
    """Means of a column over the rows of each line at each x, without rows that have no value.

    **Arguments:** `line`, `x`, `value`: names of columns.
    """
    measured = rows[np.isfinite(rows[value].astype(float))]
    lines = []
    for name, of_line in measured.groupby(line, sort=False):
        at_x = {at: some[value].to_numpy(dtype=float) for at, some in of_line.groupby(x)}
        lines.append(Line(str(name), list(at_x), [mean_interval(v) for v in at_x.values()]))
    return lines


def grid_plot(
    grids: Mapping[str, Float[ndarray, "rows columns"]], across: str, down: str, **layout: Any
) -> go.Figure:
    """Heat maps of classes by classes under their titles.

    A map with negative numbers has a diverging scale, whose range the cells off the diagonal set.
    """
    plot = subplots(list(grids), 440, space=0.12, y_title=down, **layout)
    for col, values in enumerate(grids.values(), start=1):
        names = [str(number) for number in range(len(values))]
        diverging = bool((values < 0).any())
        end = float(np.abs(values[~np.eye(len(values), dtype=bool)]).max())
        plot.add_heatmap(
            z=values.round(6),
            x=names,
            y=names,
            colorscale=DIVERGING if diverging else SEQUENTIAL,
            zmin=-end if diverging else None,
            zmax=end if diverging else None,
            xgap=1,
            ygap=1,
            colorbar={
                "thickness": 10,
                "x": plot.get_subplot(1, col).xaxis.domain[1] + 0.01,
                "nticks": 5,
            },
            hovertemplate=f"{down} %{{y}}, {across} %{{x}}: %{{z:.3g}}<extra></extra>",
            row=1,
            col=col,
        )
    plot.update_xaxes(type="category", title_text=across, **CELLS)
    return plot.update_yaxes(type="category", autorange="reversed", **CELLS)
