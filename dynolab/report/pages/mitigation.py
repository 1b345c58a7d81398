"""The page that compares remedies against squeezing: one start, several arms, several seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dynolab.claims.mitigation import assess_remedies
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.group_arms import ArmTable
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.pairs import arm_table_of
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Html, Tile, page, plate_section, section, table, text, tiles
from dynolab.report.pages.summary import outcome_counts
from dynolab.report.panels.arm_style import DotPanel
from dynolab.report.panels.forest import forest_figure
from dynolab.report.panels.mitigation_table import ending, mitigation_list, mitigation_table
from dynolab.report.panels.sections import stage_section
from dynolab.report.panels.verdict_table import PLURAL, counts_of, outcome_mark
from dynolab.report.style import SPLITS, Plate, join, mean_and_ends, with_interval
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval, clear

_PANELS = (
    ("Gap y* − y⁺", "Δ nats", "gap", "", True),
    ("Chosen y⁺", "Δ nats", "chosen", "", True),
    ("Margin", "Δ nats", "margin", "", True),
    ("Gap by margin", "nats by the nat", "gap_by_margin", "", False),
    ("Right answers", "share", "right", ".3~p", False),
    ("Preferred", "share of contests", "won", ".3~p", False),
    ("Distinct-2", "share", "distinct_2", ".3~p", False),
    ("Entropy", "nats", "entropy", "", False),
)
_CLAIMS = (
    "Means over seeds with 95% t-intervals, differences paired by seed. Appears: the interval lies "
    "on the hoped-for side; does not: it lies on the other; unclear: neither, as with one seed. "
    "Every interval stands for itself: about one in twenty excludes a true zero by chance."
)
JUDGES = {
    "exact": "the world itself: a right fact beats any style, then form, then the preferred words",
    "log_prob": "the base model, by log π per token: it prefers the usual, which is not the good",
}


def write_mitigation_page(
    compared: ComparedArms, folder: Path, *, settings: str = "", stages: Sequence[StageFacts] = ()
) -> dict[str, float]:
    """Writes `mitigation.html`, which stands alone, `summary.json`, `comparison.json`, which holds
    all that the page is made from, and the figure in `figures/`.

    **Returns** the flat finite numbers of the summary: `<arm>/<figure>`, means over seeds,
    `<arm>/diverged`, counts of seeds, and `claims/<outcome>`.
    """
    figures = arm_table_of(compared)
    verdicts = assess_remedies(list(compared.arms), compared.baseline, figures)
    plates = [plate for plate in (remedy_plate(compared, figures),) if plate is not None]
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(compared.name)}</h1>{_lead(compared).markup}"),
        tiles(_tiles(compared, figures, verdicts)),
        Html("</header><main>"),
        *map(plate_section, plates),
        mitigation_table(compared, figures),
        mitigation_list(compared),
        _verdict_section(verdicts),
        stage_section(stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    summary = _summary(compared, figures, verdicts)
    title = f"Dynolab: {compared.name}"
    write_text(folder / "mitigation.html", page(title, body, plotly_js))
    write_text(folder / "comparison.json", compared.model_dump_json(indent=1) + "\n")
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_plates(plates, folder / "figures", plotly_js)
    metrics: dict[str, float] = summary["metrics"]
    return metrics


def remedy_plate(compared: ComparedArms, figures: ArmTable) -> Plate | None:
    """Every arm's gap, likelihoods, quality and diversity, side by side."""
    panels = []
    for title, unit, name, form, zero in _PANELS:
        shown = {
            SPLITS[split]: f"{split}/{name}"
            for split in SPLITS
            if f"{split}/{name}" in figures.names
        }
        if shown:
            panels.append(DotPanel(title, unit, shown, form, zero))
    if not panels:
        return None
    return Plate(
        "remedies",
        "What each remedy does to squeezing, quality and diversity",
        _message(compared, figures),
        "Diamonds: means over seeds with 95% t-intervals; dots: single seeds; dotted: "
        f"{compared.baseline}. Gap, chosen and margin (y⁺ − y⁻) are changes since the start of "
        "preference training, on the watched pairs; gap by margin is their ratio: an arm that only "
        "trains less has a smaller gap and the same ratio. The others are of sampled answers. "
        "Preferred: "
        f"share of answers that beat {compared.baseline}'s to the same prompt, ties half. The "
        f"judge is {JUDGES.get(compared.judge, compared.judge)}.",
        forest_figure(figures, list(compared.arms), panels, compared.baseline),
    )


def _message(compared: ComparedArms, figures: ArmTable) -> str:
    own = figures.mean(compared.baseline, "train/gap")
    if not own.n:
        return "The gap was not measured under the baseline."
    said = f"Under {compared.baseline} the gap grows by {with_interval(own)} nats."
    for name, start in (("gap", "It grows"), ("gap_by_margin", "By the nat of margin it grows")):
        changes = {
            arm: figures.difference(arm, compared.baseline, f"train/{name}")
            for arm in compared.others
        }
        for sign, how in ((-1, "less"), (1, "more")):
            told = [
                f"{arm} ({mean_and_ends(one)[0]})"
                for arm, one in changes.items()
                if clear(one) and sign * one.mean > 0
            ]
            if told:
                said += f" {start} {how} under {join(told)}."
    return said


def _lead(compared: ComparedArms) -> Html:
    seeds = join(list(map(str, compared.seeds)))
    said = (
        f"What becomes of squeezing, quality and diversity under {len(compared.arms)} ways of "
        f"preference training, each with seed{'s' if len(compared.seeds) > 1 else ''} {seeds}. "
        "Brackets hold 95% t-intervals over seeds."
    )
    return Html(f'<p class="lead">{text(said)}</p>')


def _tiles(compared: ComparedArms, figures: ArmTable, verdicts: Sequence[Verdict]) -> list[Tile]:
    own = compared.baseline
    gap, chosen = (figures.mean(own, f"train/{name}") for name in ("gap", "chosen"))
    best = min(
        compared.others,
        default=None,
        key=lambda arm: _or_worst(figures.difference(arm, own, "train/gap")),
    )
    found = [_tile(f"{own}: gap y* − y⁺", gap), _tile(f"{own}: chosen y⁺", chosen)]
    if best is not None:
        change = figures.difference(best, own, "train/gap")
        found.append(_tile(f"Least gap: {best} − {own}", change))
    runs = [run for arm in compared.arms for run in compared.runs[arm]]
    diverged = sum(run.diverged is not None for run in runs)
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    detail = f"{diverged} of {len(runs)} runs diverged"
    return [*found, Tile("Hopes that appear", f"{appear} of {len(verdicts)}", detail)]


def _or_worst(change: Interval) -> float:
    return change.mean if change.n else float("inf")


def _tile(what: str, change: Interval) -> Tile:
    mean, low, high = mean_and_ends(change)
    return Tile(what, mean, f"nats [{low}, {high}], {change.n} seeds")


def _verdict_section(verdicts: Sequence[Verdict]) -> Html:
    """A line for each arm, a column for each hope."""
    hopes = list(dict.fromkeys(verdict.claim for verdict in verdicts))
    by_arm: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_arm.setdefault(verdict.topic, []).append(verdict)
    return section(
        "verdicts",
        "What is hoped of each remedy",
        f"Of {len(verdicts)} hopes {counts_of(verdicts, PLURAL)}."
        if verdicts
        else "There is nothing to compare with the baseline.",
        table(("arm", *hopes), [(arm, *map(_hope, own)) for arm, own in by_arm.items()]),
        note=_CLAIMS,
    )


def _hope(verdict: Verdict) -> Html:
    (figure,) = verdict.measured
    measured = with_interval(figure.interval, sign=verdict.id.rpartition("/")[2] != "won")
    mark = outcome_mark(verdict).markup
    return Html(f'{mark} <span class="num quiet">{text(measured)}</span>')


def _summary(
    compared: ComparedArms, figures: ArmTable, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    means = {
        f"{arm}/{name}": mean
        for arm in compared.arms
        for name in figures.names
        if (mean := figures.mean(arm, name)).n
    }
    metrics = {name: mean.mean for name, mean in means.items()}
    for arm in compared.arms:
        runs = compared.runs[arm]
        metrics[f"{arm}/diverged"] = float(sum(run.diverged is not None for run in runs))
    metrics |= outcome_counts(verdicts)
    return {
        "comparison": compared.name,
        "seeds": list(compared.seeds),
        "arms": list(compared.arms),
        "baseline": compared.baseline,
        "metrics": metrics,
        "means": {name: mean.as_dict() for name, mean in means.items()},
        "differences": {
            f"{arm}/{name}": difference.as_dict()
            for arm in compared.others
            for name in figures.names
            if (difference := figures.difference(arm, compared.baseline, name)).n
        },
        "ends": {arm: ending(compared.runs[arm], compared.seeds) for arm in compared.arms},
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
