"""The page that compares trainings on sampled groups: one start, several arms, several seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dynolab.claims.groups import assess_arms
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.group_arms import LAZY_SHARE, START, ArmTable, pass_names, splits_of
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.groups import GroupPageInputs
from dynolab.report.page import Html, Tile, page, plate_section, text, tiles
from dynolab.report.pages.summary import outcome_counts
from dynolab.report.panels.arm_curves import arm_curve_plate
from dynolab.report.panels.arm_list import arm_list
from dynolab.report.panels.arm_panels import (
    against_plate,
    displacement_plate,
    diversity_plate,
    likelihood_plate,
)
from dynolab.report.panels.arm_table import arm_table
from dynolab.report.panels.pass_at_k import pass_plate
from dynolab.report.panels.sections import stage_section, verdict_section
from dynolab.report.style import SPLITS, Plate, join, points

_CLAIMS = (
    "Claims follow the papers of NTHR (Deng et al., arXiv 2505.18830) and SimKO "
    "(arXiv 2510.14807). Intervals are 95% t-intervals over seeds, paired where arms or before and "
    "after are compared. Appears: the interval lies on the expected side; does not: it lies on "
    "the other; unclear: neither, as with one seed."
)


def write_group_page(inputs: GroupPageInputs, folder: Path) -> dict[str, float]:
    """Writes `grpo.html`, which stands alone, `summary.json`, and every figure in `figures/`.

    **Returns** the flat finite numbers of the summary: `<arm>/<figure>`, means over seeds, and
    `claims/<outcome>`.
    """
    table = inputs.table()
    verdicts = assess_arms(inputs.arms, inputs.baseline, table)
    plates = _plates(inputs, table)
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(inputs.name)}</h1>{_lead(inputs).markup}"),
        tiles(_tiles(inputs, table, verdicts)),
        Html("</header><main>"),
        arm_list(inputs),
        *map(plate_section, plates),
        arm_table(inputs, table),
        verdict_section(verdicts, _CLAIMS),
        stage_section(inputs.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(inputs.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    summary = _summary(inputs, table, verdicts)
    write_text(folder / "grpo.html", page(f"Dynolab: {inputs.name}", body, plotly_js))
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_plates(plates, folder / "figures", plotly_js)
    metrics: dict[str, float] = summary["metrics"]
    return metrics


def _plates(inputs: GroupPageInputs, table: ArmTable) -> list[Plate]:
    made = (
        arm_curve_plate(inputs),
        pass_plate(inputs, table),
        against_plate(inputs, table),
        displacement_plate(inputs, table),
        likelihood_plate(inputs, table),
        diversity_plate(inputs, table),
    )
    return [plate for plate in made if plate is not None]


def _lead(inputs: GroupPageInputs) -> Html:
    arms, seeds = list(inputs.arms), inputs.seeds
    prompts = next(iter(inputs.starts.values())).prompts
    counts = [sum(one.split == split for one in prompts) for split in ("train", "heldout")]
    samples = max((one.samples for one in prompts), default=0)
    said = (
        f"What training on groups of its own answers does to a model, in {len(arms)} ways: "
        f"{join(arms)}. Each with seed{'s' if len(seeds) > 1 else ''} {join(list(map(str, seeds)))}"
        f"; all arms of a seed start from one model. Evaluated by {samples} samples to each of "
        f"{counts[0]} training and {counts[1]} held-out prompts. Brackets hold 95% t-intervals "
        f"over {inputs.unit}."
    )
    return Html(f'<p class="lead">{text(said)}</p>')


def _tiles(inputs: GroupPageInputs, table: ArmTable, verdicts: Sequence[Verdict]) -> list[Tile]:
    arm, found = inputs.baseline, []
    for split in splits_of(table.names):
        name = pass_names(table.names, split)[0]
        before, after = table.mean(START, name), table.mean(arm, name)
        change = points(table.difference(arm, START, name))
        found.append(
            Tile(
                f"{arm}: pass@1, {SPLITS[split]}",
                f"{100 * after.mean:.1f}%",
                f"before {100 * before.mean:.1f}%: {change} points",
            )
        )
    lazy = table.mean(arm, LAZY_SHARE)
    if lazy.n:
        found.append(
            Tile(
                f"{arm}: displaced",
                f"{100 * lazy.mean:.1f}%",
                f"of questions, by one update on each; {points(lazy, sign=False)}",
            )
        )
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    unclear = sum(verdict.outcome == "unclear" for verdict in verdicts)
    found.append(Tile("Claims that appear", f"{appear} of {len(verdicts)}", f"{unclear} unclear"))
    return found


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
    metrics = {name: mean.mean for name, mean in means.items()} | outcome_counts(verdicts)
    return {
        "comparison": inputs.name,
        "seeds": inputs.seeds,
        "baseline": inputs.baseline,
        "metrics": metrics,
        "means": {name: mean.as_dict() for name, mean in means.items()},
        "differences": {
            f"{arm}/{name}": difference.as_dict()
            for arm in arms
            if arm != inputs.baseline
            for name in table.names
            if (difference := table.difference(arm, inputs.baseline, name)).n
        },
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
