"""The page that compares trainings on sampled groups: one start, several arms, several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynolab.claims.groups import assess_arms
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.arm_table import LAZY_SHARE, START, ArmTable, pass_names, splits_of
from dynolab.data.rows import Split
from dynolab.probes.paths import LearningPaths, learning_paths
from dynolab.report.figure import Figure
from dynolab.report.groups.comparisons import (
    against_figure,
    displacement_figure,
    diversity_figure,
    likelihood_figure,
)
from dynolab.report.groups.curves import curve_figure, pass_figure
from dynolab.report.groups.forces import choice_figure, completion_figure
from dynolab.report.groups.tables import arm_list, arm_table
from dynolab.report.inputs.arms import GroupPageInputs
from dynolab.report.inputs.study import Squeezing
from dynolab.report.page import Page, Tile, write_page, write_summary
from dynolab.report.study.learning_paths import gap_figure, learning_path_figure
from dynolab.report.study.squeezing import squeezing_figure
from dynolab.report.study.step_forces import decomposition_figure
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import join, points
from dynolab.report.verdicts import outcome_counts, verdict_section

_CLAIMS = (
    "Claims follow the papers of NTHR (Deng et al., arXiv 2505.18830) and SimKO "
    "(arXiv 2510.14807). Intervals are 95% t-intervals over seeds, paired where arms or before and "
    "after are compared. Appears: the interval lies on the expected side; does not: it lies on "
    "the other; unclear: neither, as with one seed."
)


_SIDES = ("answers that were pushed up", "answers that were pushed down")


def write_group_page(inputs: GroupPageInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `grpo.html`, `summary.json`, and every figure in `figures/`.

    **Returns** the summary's flat, finite metrics: `<arm>/<figure>`, means over seeds, and
    `claims/<outcome>`.
    """
    table = inputs.table()
    verdicts = assess_arms(inputs.arms, inputs.baseline, table)
    page = Page(
        name=inputs.name,
        lead=_lead(inputs),
        tiles=_tiles(inputs, table, verdicts),
        content=[
            arm_list(inputs),
            curve_figure(inputs),
            pass_figure(inputs, table),
            against_figure(inputs, table),
            displacement_figure(inputs, table),
            completion_figure(inputs, table),
            choice_figure(inputs, table),
            likelihood_figure(inputs, table),
            diversity_figure(inputs, table),
            *_probed_figures(inputs),
            arm_table(inputs, table),
            verdict_section(verdicts, _CLAIMS),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "grpo.html")
    return write_summary(_summary(inputs, table, verdicts), folder)


def _probed_figures(inputs: GroupPageInputs) -> list[Figure | None]:
    """What probes and recorded steps of the first seed's trainings show, as in a study's report."""
    seed = inputs.seeds[0]
    runs = {arm: inputs.runs[arm, seed] for arm in inputs.arms}
    paths: dict[tuple[str, Split], LearningPaths] = {
        (arm, split): own
        for arm, run in runs.items()
        for split in SPLITS
        if run.training and (own := learning_paths(run.training.probes, split)) is not None
    }
    titles = {f"{arm}-{seed}": objective_name(arm) for arm in inputs.arms}
    risen = tuple(row for run in runs.values() for row in run.risen)
    baseline = runs[inputs.baseline].training
    figures = [
        learning_path_figure(paths),
        gap_figure(paths),
        squeezing_figure(Squeezing(risen), titles),
        decomposition_figure(baseline, _SIDES) if baseline else None,
    ]
    return [figure and replace(figure, note=f"Seed {seed}. {figure.note}") for figure in figures]


def _lead(inputs: GroupPageInputs) -> str:
    arms, seeds = list(inputs.arms), inputs.seeds
    prompts = next(iter(inputs.starts.values())).prompts
    trained, heldout = (sum(row.split == split for row in prompts) for split in SPLITS)
    samples = max((row.samples for row in prompts), default=0)
    return (
        f"What training on groups of its own answers does to a model, in {len(arms)} ways: "
        f"{join(arms)}. Each with seed{'s' if len(seeds) > 1 else ''} {join(list(map(str, seeds)))}"
        f"; all arms of a seed start from the same model. Evaluated with {samples} samples to each "
        f"of {trained} training and {heldout} held-out prompts. Brackets hold 95% t-intervals over "
        f"{inputs.unit}."
    )


def _tiles(inputs: GroupPageInputs, table: ArmTable, verdicts: Sequence[Verdict]) -> list[Tile]:
    arm, tiles = inputs.baseline, []
    for split in splits_of(table.names):
        name = pass_names(table.names, split)[0]
        before, after = table.mean(START, name), table.mean(arm, name)
        change = points(table.difference(arm, START, name))
        tiles.append(
            Tile(
                f"{arm}: pass@1, {SPLITS[split]}",
                f"{100 * after.mean:.1f}%",
                f"before {100 * before.mean:.1f}%: {change} points",
            )
        )
    lazy = table.mean(arm, LAZY_SHARE)
    if lazy.n:
        detail = f"of questions, by one update on each; {points(lazy, sign=False)}"
        tiles.append(Tile(f"{arm}: displaced", f"{100 * lazy.mean:.1f}%", detail))
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    unclear = sum(verdict.outcome == "unclear" for verdict in verdicts)
    return [
        *tiles,
        Tile("Claims that appear", f"{appear} of {len(verdicts)}", f"{unclear} unclear"),
    ]


def _summary(
    inputs: GroupPageInputs, table: ArmTable, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    arms = (START, *inputs.arms)
    means = {
        f"{arm}/{name}": mean
        for arm in arms
        for name in table.names
        if (mean := table.mean(arm, name)).n
    }
    return {
        "comparison": inputs.name,
        "seeds": inputs.seeds,
        "baseline": inputs.baseline,
        "metrics": {name: mean.mean for name, mean in means.items()} | outcome_counts(verdicts),
        "means": {name: mean.as_dict() for name, mean in means.items()},
        "changes": {
            f"{arm}/{name}": change.as_dict()
            for arm in inputs.arms
            for name in table.names
            if (change := table.difference(arm, START, name)).n
        },
        "differences": {
            f"{arm}/{name}": difference.as_dict()
            for arm in arms
            if arm != inputs.baseline
            for name in table.names
            if (difference := table.difference(arm, inputs.baseline, name)).n
        },
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
