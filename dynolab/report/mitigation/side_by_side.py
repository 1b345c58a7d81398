"""The arms side by side: chosen answers as they end, and at the same margin."""

from __future__ import annotations

from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.mitigation.ranking import CRITERION, FELL, PLACES, Gains
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, mean_and_ends, number
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval

_CELL = Markup('{}<br><small class="quiet">{}</small>')
_CLEAR = Markup("<br><small><b>{}</b></small>")
_UNCLEAR = Markup('<br><small class="quiet">{}</small>')


def side_by_side(compared: ComparedArms, figures: ArmTable) -> Section | None:
    """One row an arm; None where nothing is compared."""
    gains = Gains(compared, figures, compared.others)
    places = [place for place in PLACES if gains.measured(place)]
    if not places:
        return None
    fell = [name for name in FELL if gains.measured(name)]
    rows = [
        [
            Markup("<b>{}</b>").format(arm),
            *(_cell(compared, figures, gains, arm, place) for place in places),
            *(_share(compared, figures, gains, arm, name) for name in fell),
            _margin(arm, figures),
        ]
        for arm in compared.arms
    ]
    return section(
        "side-by-side",
        "The arms side by side",
        "",
        table(
            (
                "arm",
                *(f"Δ chosen {PLACES[place]}" for place in places),
                *(f"% that fell {FELL[name]}" for name in fell),
                "margin learned",
            ),
            rows,
            "s" + "n" * (len(places) + len(fell) + 1),
            cards=True,
        ),
        note=_note(compared, gains),
    )


def _note(compared: ComparedArms, gains: Gains) -> str:
    few = [PLACES[split] for split, _ in gains.undecided()]
    return " ".join(
        [
            "Nats, means over seeds: an arm's own change over the training and, below it, its "
            f"difference from {compared.baseline} [95% t-interval], bold where the interval "
            "excludes zero. At the same margin: at the largest that both reach; what is higher at "
            "the end alone may only have learned less.",
            *([f"Never bold, of too few pairs: {join(few)}."] if few else []),
            CRITERION,
            *(
                [
                    f"{join(named)} was named by what pairs did to the followed answers, held-out "
                    "ones too: part of its gain is of that choice."
                ]
                if (named := [a for a in compared.others if compared.arms[a].filtered_by == "id"])
                else []
            ),
        ]
    )


def _cell(
    compared: ComparedArms, figures: ArmTable, gains: Gains, arm: str, place: str
) -> Markup | str:
    """An arm's own change and, below it, its difference from the baseline's."""
    own = figures.mean(arm, f"{place}/chosen")
    mean = mean_and_ends(own, True)[0] if own.n else ""
    if arm == compared.baseline:
        return Markup("<b>{}</b>").format(mean) if mean else "–"
    change = gains.of(arm).get(place)
    if change is None:
        return mean or "–"
    difference = " ".join(mean_and_ends(change, True))
    line = _CLEAR if gains.decides(arm, place) else _UNCLEAR
    return Markup("{}{}").format(mean, line.format(difference))


def _share(
    compared: ComparedArms, figures: ArmTable, gains: Gains, arm: str, name: str
) -> Markup | str:
    """The share of an arm's chosen answers that fell and, below it, its difference, in percent."""
    own = figures.mean(arm, name)
    if not own.n:
        return "–"
    mean = number(100 * own.mean)
    if arm == compared.baseline or (change := gains.of(arm).get(name)) is None:
        return Markup("<b>{}</b>").format(mean) if arm == compared.baseline else mean
    line = _CLEAR if gains.decides(arm, name) else _UNCLEAR
    return Markup("{}{}").format(
        mean, line.format(" ".join(mean_and_ends(change.times(100), True)))
    )


def _margin(arm: str, figures: ArmTable) -> Markup | str:
    """The margin learned in training, and below it that of held-out pairs."""
    train, heldout = (_mean(figures.mean(arm, f"{split}/margin")) for split in ("train", "heldout"))
    return _CELL.format(train, heldout and f"held out {heldout}") if train else "–"


def _mean(value: Interval) -> str:
    return mean_and_ends(value)[0] if value.n else ""
