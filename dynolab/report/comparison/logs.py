"""The page of trainings whose logs others wrote: their paths, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.reproduction import TITLES, assess_log
from dynolab.claims.verdict import Verdict
from dynolab.probes.events import GAP
from dynolab.probes.logs import Log
from dynolab.probes.paths import change
from dynolab.report.comparison.runs import intervals_of_change
from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Page, Words, table
from dynolab.report.study.tables import values_of
from dynolab.report.style import in_order, style_of
from dynolab.report.text import number, with_interval
from dynolab.report.verdicts import verdict_table
from dynolab.results.study import ARGMAX
from dynolab.statistics import mean_interval


@dataclass(frozen=True)
class LoggedRun:
    """A run's log, and what was trained: one of `dynolab.claims.reproduction.TITLES`."""

    training: str
    log: Log

    @property
    def title(self) -> str:
        """The training in words."""
        return TITLES[self.training]


def logs_page(name: str, runs: Mapping[str, LoggedRun], settings: str) -> Page:
    """The page of the runs by name: changes, paths and verdicts, over prompts."""
    verdicts = verdicts_on(runs)
    words = Words("logs.html", verdicts=verdicts, runs=runs)
    rows = [_row(run, logged) for run, logged in runs.items()]
    head = (
        "run",
        "training",
        "evaluations",
        "prompts",
        "Δ chosen",
        "fell",
        "Δ y*",
        "Δ gap",
        "note",
    )
    found = verdict_table(
        "run", verdicts, named=lambda run: f"{run}: {runs[run].title}" if run in runs else run
    )
    return Page(
        name=name,
        answer=words.lines("answer"),
        lead=words("lead"),
        content=[
            words.section("changes", table(head, rows, "ssnnnnnns")),
            *(_figure(f"paths-{i}", run, runs[run], words) for i, run in enumerate(runs)),
            words.section("verdicts", found),
        ],
        settings=settings,
    )


def verdicts_on(runs: Mapping[str, LoggedRun]) -> list[Verdict]:
    """Every run's verdicts, as `<run>/<training>/<claim>`, with the run as their topic."""
    return [
        verdict.model_copy(update={"id": f"{run}/{verdict.id}", "topic": run})
        for run, logged in runs.items()
        for verdict in assess_log(logged.training, logged.log.paths)
    ]


def changes_of(log: Log) -> dict[str, Float[ndarray, " pairs"]]:
    """The change of every kind, and of the gap, nats for each pair."""
    kinds = (*log.paths.logp, GAP)
    known = {kind: values_of(log.paths, kind) for kind in kinds}
    return {kind: change(path) for kind, path in known.items() if path is not None}


def _row(run: str, logged: LoggedRun) -> Sequence[str]:
    log, changes = logged.log, changes_of(logged.log)
    chosen = changes.get("chosen", np.empty(0))
    moved = (changes.get(kind, np.empty(0)) for kind in ("chosen", ARGMAX, GAP))
    first, *others = (with_interval(mean_interval(own)) for own in moved)
    fell = f"{(chosen < 0).mean():.0%}" if len(chosen) > 1 else "–"
    size = (str(len(log.paths.steps)), number(len(chosen)) if len(chosen) > 1 else "their mean")
    return (run, logged.title, *size, first, fell, *others, "; ".join(log.notes))


def _figure(name: str, run: str, logged: LoggedRun, words: Words) -> Figure:
    """A run's paths: answers, the prediction's distance from the answer, and norms of A."""
    paths, others = logged.log.paths, logged.log.others
    at = paths.steps.tolist()
    answers = {style_of(kind).label: paths.logp[kind] for kind in in_order(paths.logp)}
    near = {name: others[name] for name in ("p_e", "energy") if name in others}
    norms = {name: path for name, path in others.items() if name.endswith("A_o")}
    panels = [
        LinePanel(
            title,
            "evaluation",
            unit,
            [
                Line(kind, at, intervals_of_change(path[:, np.isfinite(path[0])]))
                for kind, path in own.items()
            ],
        )
        for title, unit, own in (
            ("answers", "log π (nats)", answers),
            ("p − e of the chosen", "norm", near),
            ("A", "norm", norms),
        )
        if own
    ]
    text = words.figure("paths", line_plot(panels))
    return Figure(name, f"{run}: {logged.title}", text.message, text.note, text.plot)
