"""The page that compares remedies against squeezing: one start, several arms, several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dynolab.claims.mitigation import assess_remedies
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.arm_table import LEAST_COUNT, ArmTable
from dynolab.report.inputs.arms import arm_table_of
from dynolab.report.inputs.files import StageFacts
from dynolab.report.mitigation.figure import remedy_figure
from dynolab.report.mitigation.followed import followed_section
from dynolab.report.mitigation.listed import mitigation_list
from dynolab.report.mitigation.matched import matched_figure, matched_section, matched_table_of
from dynolab.report.mitigation.opening import answer, more, unlearned
from dynolab.report.mitigation.ranking import PLACES, Gains
from dynolab.report.mitigation.side_by_side import side_by_side
from dynolab.report.mitigation.tables import ending, mitigation_table
from dynolab.report.page import (
    Page,
    Section,
    Tile,
    section,
    table,
    write_page,
    write_summary,
    write_text,
)
from dynolab.report.text import join, mean_and_ends, with_interval
from dynolab.report.verdicts import (
    PLURAL,
    counts_of,
    outcome_counts,
    outcome_mark,
)
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval

_CLAIMS = (
    "Means over seeds with 95% t-intervals, differences paired by seed. Appears: the interval lies "
    "on the hoped-for side; does not: it lies on the other; unclear: neither, as with one seed, "
    f"or fewer than {LEAST_COUNT} pairs or prompts. "
    "Intervals are not corrected for their number: about one in twenty excludes a true zero by "
    "chance."
)


def write_mitigation_page(
    compared: ComparedArms, folder: Path, *, settings: str = "", stages: Sequence[StageFacts] = ()
) -> dict[str, float]:
    """Writes the self-contained `mitigation.html`, `summary.json`, `comparison.json` with all the
    page's data, and the figure in `figures/`.

    **Returns** the summary's flat, finite metrics: `<arm>/<figure>`, means over seeds,
    `<arm>/diverged`, counts of seeds, and `claims/<outcome>`.
    """
    figures = arm_table_of(compared)
    verdicts = assess_remedies(list(compared.arms), compared.baseline, figures)
    page = Page(
        name=compared.name,
        heading="What did each remedy do to the chosen answers?",
        answer=answer(compared, figures),
        more=more(compared, figures),
        lead=_lead(compared),
        tiles=_tiles(compared, figures, verdicts),
        content=[
            side_by_side(compared, figures),
            followed_section(compared),
            remedy_figure(compared, figures),
            matched_figure(compared),
            matched_section(compared),
            mitigation_table(compared, figures),
            mitigation_list(compared),
            _verdict_section(verdicts),
        ],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "mitigation.html")
    write_text(folder / "comparison.json", compared.model_dump_json(indent=1) + "\n")
    return write_summary(_summary(compared, figures, verdicts), folder)


def _lead(compared: ComparedArms) -> str:
    seeds = join(list(map(str, compared.seeds)))
    return (
        "How squeezing, quality and diversity change under "
        f"{'one way' if len(compared.arms) == 1 else f'{len(compared.arms)} ways'} of "
        f"preference training, each with seed{'s' if len(compared.seeds) > 1 else ''} {seeds}. "
        "Brackets hold 95% t-intervals over seeds."
    )


def _tiles(compared: ComparedArms, figures: ArmTable, verdicts: Sequence[Verdict]) -> list[Tile]:
    own = compared.baseline
    gap, chosen = (figures.mean(own, f"train/{name}") for name in ("gap", "chosen"))
    right = figures.mean(own, "heldout/right")
    tiles = [Tile(f"{own}: right, held out", f"{100 * right.mean:.0f}%", _seeds(right.n))]
    tiles = tiles if right.n else []
    tiles += [_tile(f"{own}: gap y* − y⁺", gap), _tile(f"{own}: chosen y⁺", chosen)]
    useless = unlearned(compared, figures)
    gains = Gains(compared, figures, [arm for arm in compared.others if arm not in useless])
    best = gains.best() if len(compared.seeds) > 1 else None
    if best is not None:
        # Clear in shares alone, it has no clear change in nats to show.
        clear = [name for name in ("heldout", "train", "matched") if gains.decides(best, name)]
        tiles += [
            _tile(f"{best} − {own}: chosen y⁺, {PLACES[place]}", gains.of(best)[place])
            for place in clear[:1]
        ]
    runs = [run for arm in compared.arms for run in compared.runs[arm]]
    diverged = sum(run.diverged is not None for run in runs)
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    detail = f"{diverged} of {len(runs)} runs diverged"
    if not verdicts:
        return tiles
    return [*tiles, Tile("Hoped-for effects that appear", f"{appear} of {len(verdicts)}", detail)]


def _tile(label: str, change: Interval) -> Tile:
    mean, ends = mean_and_ends(change)
    return Tile(label, mean, f"{f'nats {ends}'.rstrip()}, {_seeds(change.n)}")


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _verdict_section(verdicts: Sequence[Verdict]) -> Section:
    """One row per arm, one column per hoped-for effect."""
    effects = list(dict.fromkeys(verdict.claim for verdict in verdicts))
    by_arm: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_arm.setdefault(verdict.topic, []).append(verdict)
    return section(
        "verdicts",
        "Which hoped-for effects each remedy has",
        f"Of {len(verdicts)} hoped-for effects, {counts_of(verdicts, PLURAL)}."
        if verdicts
        else "There is nothing to compare with the baseline.",
        table(
            ("arm", *effects),
            [(arm, *map(_effect, own)) for arm, own in by_arm.items()],
            cards=True,
        ),
        note=_CLAIMS,
    )


def _effect(verdict: Verdict) -> Markup:
    (figure,) = verdict.measured
    share = verdict.id.rpartition("/")[2] == "won"
    change = with_interval(figure.interval.within(0, 1) if share else figure.interval, not share)
    mark = outcome_mark(verdict)
    return Markup('{} <span class="num quiet">{}</span>').format(mark, change)


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
    matched = matched_table_of(compared)
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
        "matched": {
            f"{arm}/{name.removeprefix('matched/')}": value.as_dict()
            for arm in compared.others
            for name in matched.names
            if (value := matched.over_seeds(arm, name)).n
        },
        "ends": {arm: ending(compared.runs[arm], compared.seeds) for arm in compared.arms},
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
