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
from dynolab.report.page import Page, Words, as_dicts, table, write_page, write_summary
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
from dynolab.results.arms import AFTER_EXTENDED, TITLES, RunFigures
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, band, mean_interval
from experiments.reproduce.claims import assess_log, assess_reproduction
from experiments.reproduce.logs import Log

_SHOWN = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}

HERE = Path(__file__).parent


@dataclass(frozen=True)
class ReproductionInputs(PageInputs):
    """Everything the page of the papers' findings shows.

    `runs`: by the training's name in `dynolab.results.arms.TITLES` and by seed. `same_pairs`:
    whether all seeds train on the same pairs.
    """

    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], PairRun]
    same_pairs: bool = False

    @property
    def unit(self) -> str:
        """What intervals are computed over."""
        if len(self.seeds) == 1:
            return "prompts"
        return "seeds and prompts" if self.same_pairs else "seeds"


def write_reproduction_page(inputs: ReproductionInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `reproduction.html`, `summary.json`, `verdicts.jsonl`, `figures/`.

    **Returns** the summary's flat, finite metrics: `<training>/<kind>`, changes in nats, means over
    seeds, and `claims/<outcome>`.
    """
    seeds: list[Trainings] = []
    runs: dict[str, dict[int, RunFigures]] = {training: {} for training in TITLES}
    for seed in inputs.seeds:
        probed = {}
        for training in TITLES:
            run = inputs.runs.get((training, seed))
            if run is not None:
                runs[training][seed] = run.row()
                paths = learning_paths(run.probes) if run.summary else None
                if paths is not None:
                    probed[training] = paths
        seeds.append(probed)
    won = [inputs.runs[AFTER_EXTENDED, seed].won for seed in inputs.seeds]
    shares = [share for share in won if share is not None]
    share_won = None
    if len(shares) == len(won):
        share_won = shares[0] if len(won) == 1 else mean_interval([share.mean for share in shares])
    verdicts = assess_reproduction(seeds, share_won, same_pairs=inputs.same_pairs)
    changes = changes_of(seeds, same_pairs=inputs.same_pairs)
    words = Words(HERE / "reproduction.html", inputs=inputs, unit=inputs.unit)
    rows: dict[str, dict[str, Interval]] = {}
    values: dict[str, list[dict[str, float]]] = {}
    ends: dict[str, str] = {}
    for training, title in TITLES.items():
        if runs[training]:
            names = [name for name in _SHOWN if f"{training}/{name}" in changes]
            rows[title] = {name: changes[f"{training}/{name}"] for name in names}
            values[title] = [{name: rows[title][name].mean for name in names}]
            ends[title] = ending(runs[training])
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
        "changes": as_dicts(changes),
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
    return write_summary(summary, folder)


def changes_of(seeds: Sequence[Trainings], *, same_pairs: bool) -> dict[str, Interval]:
    """`<training>/<kind>` and `<training>/gap`: mean changes in nats, measured as in the claims."""
    changes: dict[str, Interval] = {}
    for training in TITLES:
        for name in _SHOWN:
            values = _values_by_seed(seeds, training, name)
            if values:
                moved = [change(of_seed) for of_seed in values]
                changes[f"{training}/{name}"] = over_units(moved, same_pairs=same_pairs)
    return changes


def _values_by_seed(seeds: Sequence[Trainings], training: str, kind: str) -> list[ndarray]:
    """Every seed's values of a kind; none unless all seeds have them."""
    values = []
    for trainings in seeds:
        of_seed = values_of(trainings[training], kind) if training in trainings else None
        if of_seed is None:
            return []
        values.append(of_seed)
    return values


def _path_figure(seeds: Sequence[Trainings], words: Words) -> Figure | None:
    """Chosen, rejected, y* and the gap over every training, means over seeds."""
    trainings = [name for name in TITLES if all(name in of_seed for of_seed in seeds)]
    panels = []
    for kind, title in _SHOWN.items():
        lines = []
        for training in trainings:
            steps = seeds[0][training].steps
            values = _values_by_seed(seeds, training, kind)
            if values and all(len(of_seed) == len(steps) for of_seed in values):
                means = np.stack([band(of_seed)[0] for of_seed in values], axis=1)
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
    verdicts_shown = verdict_table(
        "run", verdicts, named=lambda run: f"{run}: {TITLES[runs[run].training]}"
    )
    return words.page(
        name,
        content=[
            words.section("changes", table(head, rows, "ssnnnnnns", cards=True)),
            *(_figure(f"paths-{i}", run, runs[run], words) for i, run in enumerate(runs)),
            words.section("verdicts", verdicts_shown),
        ],
        settings=settings,
    )


def verdicts_on(runs: Mapping[str, Log]) -> list[Verdict]:
    """Every run's verdicts, as `<run>/<training>/<claim>`, with the run as their topic."""
    verdicts = []
    for run, log in runs.items():
        for verdict in assess_log(log.training, log.paths):
            update = {"id": f"{run}/{verdict.id}", "topic": run}
            verdicts.append(verdict.model_copy(update=update))
    return verdicts


def changes_of_log(log: Log) -> dict[str, Float[ndarray, " pairs"]]:
    """The change of every kind, and of the gap, nats for each pair that has it."""
    values = {kind: values_of(log.paths, kind) for kind in (*log.paths.logp, GAP)}
    changes = {kind: change(path) for kind, path in values.items() if path is not None}
    return {kind: moved[np.isfinite(moved)] for kind, moved in changes.items()}


def _row(run: str, log: Log) -> Sequence[str]:
    changes = changes_of_log(log)
    chosen = changes.get("chosen", np.empty(0))
    moved = (changes.get(kind, np.empty(0)) for kind in ("chosen", ARGMAX, GAP))
    first, *others = (with_interval(mean_interval(values)) for values in moved)
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
                for kind, path in lines_of.items()
            ],
        )
        for title, unit, lines_of in (
            ("answers", "log π (nats)", answers),
            ("p − e of the chosen", "norm", near),
            ("A", "norm", {name: path for name, path in others.items() if name.endswith("A_o")}),
        )
        if lines_of
    ]
    text = words.figure("paths", line_plot(panels))
    return Figure(name, f"{run}: {TITLES[log.training]}", text.message, text.note, text.plot)
