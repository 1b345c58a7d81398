"""The page of trainings on sampled groups, against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup

from dynolab.claims.arms import assess_arms
from dynolab.comparisons.arm_table import (
    ADVANTAGE_SIGN,
    FROM_RIGHT,
    FROM_WRONG,
    HARM_FOUND,
    HARMFUL,
    LAZY_CHANGE,
    LAZY_SHARE,
    PRECISION,
    RECALL,
    RULE_RANK,
    RULE_SIGN,
    SQUEEZE_INDEX,
    START,
    ArmTable,
    pass_names,
    splits_of,
)
from dynolab.data.rows import Split
from dynolab.grouping import attributes
from dynolab.probes.paths import LearningPaths, learning_paths
from dynolab.report.figure import Figure
from dynolab.report.inputs.arms import GroupPageInputs, curve
from dynolab.report.inputs.study import Squeezing
from dynolab.report.page import Words, as_dicts, table, write_page, write_summary
from dynolab.report.plots import Line, LinePanel, line_plot
from dynolab.report.study.learning_paths import (
    WINDOW,
    learning_path_figure,
    running_mean,
    squeezing_figure,
)
from dynolab.report.study.page import decomposition_figure
from dynolab.report.style import SPLITS, number, objective_name, points, text_table
from dynolab.report.tables import (
    Measure,
    intervals_of_change,
    outcome_counts,
    run_name,
    run_table,
    standings,
    verdict_table,
)
from dynolab.results.study import RisenMass

_CURVES = (
    ("rollout/pass_at_1", "Accuracy of the answers sampled for training", "pass@1", ".0%"),
    ("rollout/entropy", "Entropy", "nats per token", ".2f"),
)
_OF_SPLIT = (
    Measure("distinct", "different answers, %", share=True),
    Measure("by_habit", "by the habit, %", share=True),
    Measure("by_other_way", "by the other strategy, %", share=True),
    Measure("entropy", "entropy, nats"),
    Measure("tokens", "length, tokens"),
    Measure("repeaters", "repeat themselves, %", share=True),
    Measure("right_change", "Δ log π of right answers", signed=True),
    Measure("right_fallen", "prompts where these fell, %", share=True),
    Measure("chosen", "Δ log π of chosen", signed=True),
    Measure("rejected", "Δ log π of rejected", signed=True),
    Measure("argmax", "Δ log π of y*", signed=True),
    Measure("gap", "Δ gap y* − chosen", signed=True),
)
_UPDATE = (
    Measure(LAZY_SHARE, "questions displaced, %", share=True),
    Measure(LAZY_CHANGE, "Δ log π of right answers", signed=True),
    Measure(FROM_RIGHT, "push on right answers by right ones, nats per learning rate", signed=True),
    Measure(FROM_WRONG, "push on right answers by wrong ones, nats per learning rate", signed=True),
    Measure(HARMFUL, "harmful tokens of wrong answers, %", share=True),
    Measure(PRECISION, "harmful among the tokens that the rule chose, %", share=True),
    Measure(RECALL, "harmful tokens that the rule chose, %", share=True),
    Measure(HARM_FOUND, "harm by the tokens that the rule chose, %", share=True),
    Measure(RULE_RANK, "entropy by answer: S beside the exact line, rank correlation", signed=True),
    Measure(RULE_SIGN, "entropy by answer: S has the sign, %", share=True),
    Measure(ADVANTAGE_SIGN, "entropy by answer: −advantage has the sign, %", share=True),
    Measure(SQUEEZE_INDEX, "squeezing index, %", share=True),
)


def write_group_page(inputs: GroupPageInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `grpo.html`, `summary.json`, and every figure in `figures/`.

    **Returns** the summary's flat, finite metrics: `<run>/<figure>`, means over seeds, and
    `claims/<outcome>`.
    """
    figures, baseline = inputs.table(), inputs.baseline
    verdicts = assess_arms(inputs.arms, baseline, figures)
    runs, others = [START, *inputs.arms], [run for run in inputs.arms if run != baseline]
    passes = {split: pass_names(figures.names, split) for split in splits_of(figures.names)}
    first, more = [], []
    for split, names in passes.items():
        for name in dict.fromkeys((names[0], names[-1])):
            caption = f"pass@{name.rpartition('_')[2]}, {SPLITS[split]}, %"
            first.append(Measure(name, caption, share=True))
        of_split = [replace(measure, figure=f"{split}/{measure.figure}") for measure in _OF_SPLIT]
        more.append(run_table(figures, runs, of_split, baseline))
    ends = attributes(first, "figure")
    ranked = standings(figures, others, baseline, dict.fromkeys(ends, 1), ends[::-1])
    best = ranked[0] if ranked and ranked[0].recommended else None
    words = Words(
        "groups.html",
        inputs=inputs,
        figures=figures,
        passes=passes,
        start=START,
        best=best,
        measured=len(ends),
        splits=list(passes),
        window=WINDOW,
    )
    page = words.page(
        inputs.name,
        content=[
            words.section(
                "runs", run_table(figures, runs, first, baseline, best.run if best else None)
            ),
            words.figure("pass-at-k", _pass_plot(figures, passes, runs)) if passes else None,
            _curve_figure(inputs, words),
            words.section("more", *more),
            words.section("update", run_table(figures, list(inputs.arms), _UPDATE, baseline)),
            *_probed_figures(inputs),
            words.section("settings", _settings_table(inputs)),
            words.section("verdicts", verdict_table("run", verdicts)),
        ],
        printed=_printed(figures, runs, first, baseline),
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "grpo.html")
    means = figures.means(runs)
    summary = {
        "comparison": inputs.name,
        "seeds": inputs.seeds,
        "baseline": baseline,
        "metrics": {name: mean.mean for name, mean in means.items()} | outcome_counts(verdicts),
        "means": as_dicts(means),
        "changes": as_dicts(figures.against(START).means([*inputs.arms])),
        "differences": as_dicts(figures.against(baseline).means([START, *others])),
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
    return write_summary(summary, folder)


def _printed(
    figures: ArmTable, runs: Sequence[str], measures: Sequence[Measure], baseline: str
) -> str:
    """The table of runs for a terminal: each mean, and in brackets its difference."""
    rows = []
    for run in runs:
        cells = []
        for measure in measures:
            change = figures.difference(run, baseline, measure.figure)
            cell = number(100 * figures.mean(run, measure.figure).mean)
            cells.append(cell if run == baseline else f"{cell} ({points(change)})")
        rows.append((run, *cells))
    captions = [measure.caption.replace("training", "train") for measure in measures]
    return text_table(("run", *captions), rows, "s" * (1 + len(captions)))


def _pass_plot(
    figures: ArmTable, passes: Mapping[Split, list[str]], runs: Sequence[str]
) -> go.Figure:
    """pass@k by k, a panel for each split."""
    panels = []
    for split, names in passes.items():
        lines = []
        for run in runs:
            means = [figures.mean(run, name) for name in names]
            lines.append(Line(run, range(len(names)), means))
        levels = [name.rpartition("_")[2] for name in names]
        title = f"{SPLITS[split]} prompts"
        panels.append(LinePanel(title, "k", "pass@k", lines, ".0%", ticks=levels))
    return line_plot(panels)


def _curve_figure(inputs: GroupPageInputs, words: Words) -> Figure | None:
    """Accuracy and entropy of the answers sampled in training, by step."""
    panels = []
    for metric, title, unit, form in _CURVES:
        lines = []
        for run in inputs.arms:
            steps, values = curve(inputs.of_arm(run), metric)
            if steps.size:
                smooth = np.stack([running_mean(seed) for seed in values.T], axis=1)
                lines.append(Line(run, steps.tolist(), intervals_of_change(smooth)))
        if lines:
            panels.append(LinePanel(title, "step", unit, lines, form))
    return words.figure("accuracy", line_plot(panels)) if panels else None


def _probed_figures(inputs: GroupPageInputs) -> list[Figure | None]:
    """What probes and recorded steps of the first seed's trainings show, as on a study's page."""
    seed = inputs.seeds[0]
    runs = {run: inputs.runs[run, seed] for run in inputs.arms}
    paths: dict[tuple[str, Split], LearningPaths] = {}
    titles = {}
    risen: list[RisenMass] = []
    for run, of_run in runs.items():
        titles[f"{run}-{seed}"] = objective_name(run)
        risen += of_run.risen
        for split in SPLITS:
            scores = of_run.training.probes if of_run.training else ()
            of_split = learning_paths(scores, split)
            if of_split is not None:
                paths[run, split] = of_split
    training = runs[inputs.baseline].training
    sides = ("answers that were pushed up", "answers that were pushed down")
    figures = [
        learning_path_figure(paths),
        squeezing_figure(Squeezing(tuple(risen)), titles),
        decomposition_figure(training, sides) if training else None,
    ]
    return [figure and replace(figure, note=f"Seed {seed}. {figure.note}") for figure in figures]


def _settings_table(inputs: GroupPageInputs) -> Markup:
    """Every run's objective, and its settings that are not the default."""
    rows = []
    for run, objective in inputs.arms.items():
        changed = objective.model_dump(exclude_defaults=True, exclude={"name", "source_sha256"})
        texts = [f"{name} = {value}" for name, value in changed.items()]
        rows.append((run_name(run), objective_name(objective.name), ", ".join(texts)))
    return table(("run", "objective", "settings"), rows)
