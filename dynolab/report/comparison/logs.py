"""The page of trainings whose logs others wrote: their paths, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.reproduction import TITLES, assess_log
from dynolab.claims.verdict import Verdict
from dynolab.probes.logs import Log
from dynolab.probes.paths import GAP, change
from dynolab.report.comparison.runs import intervals_of_change
from dynolab.report.figure import Figure
from dynolab.report.line_plot import Line, LinePanel, line_plot
from dynolab.report.page import Page, Words, table
from dynolab.report.study.tables import values_of
from dynolab.report.style import in_order, style_of
from dynolab.report.text import number, with_interval
from dynolab.report.verdicts import verdict_table
from dynolab.results.study import ARGMAX
from dynolab.statistics import mean_interval


def logs_page(name: str, runs: Mapping[str, Log], settings: str) -> Page:
    """The page of the runs by name: changes, paths and verdicts, over prompts."""
    verdicts = verdicts_on(runs)
    words = Words("logs.html", verdicts=verdicts, runs=runs)
    rows = [_row(run, log) for run, log in runs.items()]
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
    found = verdict_table("run", verdicts, named=lambda run: f"{run}: {TITLES[runs[run].training]}")
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


def verdicts_on(runs: Mapping[str, Log]) -> list[Verdict]:
    """Every run's verdicts, as `<run>/<training>/<claim>`, with the run as their topic."""
    return [
        verdict.model_copy(update={"id": f"{run}/{verdict.id}", "topic": run})
        for run, log in runs.items()
        for verdict in assess_log(log.training, log.paths)
    ]


def changes_of(log: Log) -> dict[str, Float[ndarray, " pairs"]]:
    """The change of every kind, and of the gap, nats for each pair that has it."""
    known = {kind: values_of(log.paths, kind) for kind in (*log.paths.logp, GAP)}
    changes = {kind: change(path) for kind, path in known.items() if path is not None}
    return {kind: moved[np.isfinite(moved)] for kind, moved in changes.items()}


def _row(run: str, log: Log) -> Sequence[str]:
    changes = changes_of(log)
    chosen = changes.get("chosen", np.empty(0))
    moved = (changes.get(kind, np.empty(0)) for kind in ("chosen", ARGMAX, GAP))
    first, *others = (with_interval(mean_interval(own)) for own in moved)
    fell = f"{(chosen < 0).mean():.0%}" if len(chosen) > 1 else "–"
    size = (str(len(log.paths.steps)), number(len(chosen)) if len(chosen) > 1 else "their mean")
    return (run, TITLES[log.training], *size, first, fell, *others, log.note)


def _figure(name: str, run: str, log: Log, words: Words) -> Figure:
    """A run's paths: answers, the prediction's distance from the answer, and norms of A."""
    paths, others, at = log.paths, log.others, log.paths.steps.tolist()
    answers = {style_of(kind).label: paths.logp[kind] for kind in in_order(paths.logp)}
    near = {name: others[name] for name in ("p_e", "energy") if name in others}
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
            ("A", "norm", {name: path for name, path in others.items() if name.endswith("A_o")}),
        )
        if own
    ]
    text = words.figure("paths", line_plot(panels))
    return Figure(name, f"{run}: {TITLES[log.training]}", text.message, text.note, text.plot)
