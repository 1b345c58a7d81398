"""The pages on which of the papers' findings appear: in trainings, and in logs of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dynolab.claims.claim import Trainings, over_units
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.arm_table import ArmTable
from dynolab.data.rows import write_rows
from dynolab.probes.paths import GAP, change, learning_paths
from dynolab.report.comparison.findings import findings_section
from dynolab.report.figure import Figure
from dynolab.report.inputs.arms import PairRun
from dynolab.report.inputs.study import PageInputs
from dynolab.report.page import Page, Words, table, write_page, write_summary
from dynolab.report.plots import Line, LinePanel, line_plot
from dynolab.report.study.tables import values_of
from dynolab.report.style import in_order, number, style_of, with_interval
from dynolab.report.tables import (
    Measure,
    ending,
    intervals_of_change,
    outcome_counts,
    run_table,
    verdict_table,
)
from dynolab.results.arms import AFTER_EXTENDED, TITLES
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, mean_interval
from experiments.reproduce.claims import assess_log, assess_reproduction
from experiments.reproduce.logs import Log

_SHOWN = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}

HERE = Path(__file__).parent


@dataclass(frozen=True)
class ReproductionInputs(PageInputs):
    """Everything the page of the papers' findings shows.

    `runs`: by the training's name in `dynolab.results.arms.TITLES` and by seed.
    """

    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], PairRun]

    @property
    def unit(self) -> str:
        """What intervals are computed over."""
        return "seeds" if len(self.seeds) > 1 else "prompts"


def write_reproduction_page(inputs: ReproductionInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `reproduction.html`, `summary.json`, `verdicts.jsonl`, `figures/`.

    **Returns** the summary's flat, finite metrics: `<training>/<kind>`, changes in nats, means over
    seeds, and `claims/<outcome>`.
    """
    seeds: list[Trainings] = [
        {
            name: paths
            for name in TITLES
            if (run := inputs.runs.get((name, seed))) is not None
            and run.summary is not None
            and (paths := learning_paths(run.probes)) is not None
        }
        for seed in inputs.seeds
    ]
    won = [inputs.runs[AFTER_EXTENDED, seed].won for seed in inputs.seeds]
    shares = [share for share in won if share is not None]
    means = mean_interval(np.array([share.mean for share in shares]))
    known = None if len(shares) < len(won) else shares[0] if len(won) == 1 else means
    verdicts = assess_reproduction(seeds, known)
    changes = changes_of(seeds)
    words = Words(HERE / "reproduction.html", inputs=inputs, unit=inputs.unit)
    rows = {
        TITLES[training]: {
            name: changes[f"{training}/{name}"]
            for name in _SHOWN
            if f"{training}/{name}" in changes
        }
        for training in TITLES
        if any((training, seed) in inputs.runs for seed in inputs.seeds)
    }
    values = {run: [{name: own.mean for name, own in of.items()}] for run, of in rows.items()}
    ends = {
        TITLES[training]: ending(
            {
                seed: run.row()
                for seed in inputs.seeds
                if (run := inputs.runs.get((training, seed))) is not None
            }
        )
        for training in TITLES
    }
    measures = [Measure(name, f"Δ {title}", signed=True) for name, title in _SHOWN.items()]
    table = run_table(ArmTable(values, rows), list(rows), measures, None, about=ends)
    page = words.page(
        inputs.name,
        answer=Words("findings.html", verdicts=verdicts, unit=inputs.unit).lines("answer"),
        content=[
            words.section("changes", table),
            _path_figure(seeds, words),
            findings_section(verdicts, inputs.unit),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "reproduction.html")
    write_rows(folder / "verdicts.jsonl", verdicts)
    summary = {
        "reproduction": inputs.name,
        "seeds": list(inputs.seeds),
        "metrics": {name: moved.mean for name, moved in changes.items()} | outcome_counts(verdicts),
        "changes": {name: moved.as_dict() for name, moved in changes.items()},
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
    return write_summary(summary, folder)


def changes_of(seeds: Sequence[Trainings]) -> dict[str, Interval]:
    """`<training>/<kind>` and `<training>/gap`: mean changes in nats, measured as in the claims."""
    changes: dict[str, Interval] = {}
    for training in TITLES:
        paths = [trainings[training] for trainings in seeds if training in trainings]
        for name in _SHOWN if paths and len(paths) == len(seeds) else ():
            each = [change(known) for own in paths if (known := values_of(own, name)) is not None]
            if len(each) == len(paths):
                changes[f"{training}/{name}"] = over_units(each)
    return changes


def _path_figure(seeds: Sequence[Trainings], words: Words) -> Figure | None:
    """Chosen, rejected, y* and the gap over every training, means over seeds."""
    trainings = [name for name in TITLES if all(name in own for own in seeds)]
    panels = []
    for kind, title in _SHOWN.items():
        lines = []
        for training in trainings:
            paths = [own[training] for own in seeds]
            steps = paths[0].steps
            each = [known for own in paths if (known := values_of(own, kind)) is not None]
            if len(each) == len(paths) and all(len(values) == len(steps) for values in each):
                means = np.array([[mean_interval(row).mean for row in own] for own in each]).T
                at = (steps / steps[-1]).tolist()
                lines.append(Line(TITLES[training], at, intervals_of_change(means)))
        panels.append(LinePanel(title, "fraction of training", "log π (nats)", lines))
    return words.figure("paths", line_plot(panels)) if trainings else None


def logs_page(name: str, runs: Mapping[str, Log], settings: str) -> Page:
    """The page of the runs by name: changes, paths and verdicts, over prompts."""
    verdicts = verdicts_on(runs)
    words = Words(HERE / "logs.html", verdicts=verdicts, runs=runs)
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
    return words.page(
        name,
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


def changes_of_log(log: Log) -> dict[str, Float[ndarray, " pairs"]]:
    """The change of every kind, and of the gap, nats for each pair that has it."""
    known = {kind: values_of(log.paths, kind) for kind in (*log.paths.logp, GAP)}
    changes = {kind: change(path) for kind, path in known.items() if path is not None}
    return {kind: moved[np.isfinite(moved)] for kind, moved in changes.items()}


def _row(run: str, log: Log) -> Sequence[str]:
    changes = changes_of_log(log)
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
