"""The arms side by side: chosen answers as they end, and at the same margin."""

from __future__ import annotations

from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.mitigation.ranking import CRITERION, PLACES, Gains
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, mean_and_ends
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval

_CELL = Markup('{}<br><small class="quiet">{}</small>')
_BOLD = Markup('<b>{}</b><br><small class="quiet">{}</small>')


def side_by_side(compared: ComparedArms, figures: ArmTable) -> Section | None:
    """One row an arm; None where nothing is compared."""
    gains = Gains(compared, figures, compared.others)
    places = [place for place in PLACES if gains.measured(place)]
    if not places:
        return None
    rows = [
        [
            Markup("<b>{}</b>").format(arm),
            *(
                _own(arm, place, figures)
                if arm == compared.baseline
                else _difference(gains, arm, place)
                for place in places
            ),
            _margin(arm, figures),
        ]
        for arm in compared.arms
    ]
    return section(
        "side-by-side",
        "The arms side by side",
        "",
        table(
            ("arm", *(f"Δ chosen {PLACES[place]}" for place in places), "margin learned"),
            rows,
            "s" + "n" * (len(places) + 1),
        ),
        note=_note(compared, gains),
    )


def _note(compared: ComparedArms, gains: Gains) -> str:
    few = [PLACES[split] for split, _ in gains.undecided()]
    return " ".join(
        [
            f"Nats, means over seeds [95% t-interval]. The row of {compared.baseline} holds its "
            "own changes over the training, the others their difference from it, bold where its "
            "interval excludes zero. At the same margin: at the largest that both reach; what is "
            "higher at the end alone may only have learned less.",
            *([f"Never bold, of too few pairs: {join(few)}."] if few else []),
            CRITERION,
        ]
    )


def _own(arm: str, place: str, figures: ArmTable) -> Markup | str:
    """The baseline's own change; at the margin of others it has none."""
    change = figures.mean(arm, f"{place}/chosen")
    return _CELL.format(*mean_and_ends(change, True)) if change.n else "–"


def _difference(gains: Gains, arm: str, place: str) -> Markup | str:
    change = gains.of(arm).get(place)
    if change is None:
        return "–"
    return (_BOLD if gains.decides(arm, place) else _CELL).format(*mean_and_ends(change, True))


def _margin(arm: str, figures: ArmTable) -> Markup | str:
    """The margin learned in training, and below it that of held-out pairs."""
    train, heldout = (_mean(figures.mean(arm, f"{split}/margin")) for split in ("train", "heldout"))
    return _CELL.format(train, heldout and f"held out {heldout}") if train else "–"


def _mean(value: Interval) -> str:
    return mean_and_ends(value)[0] if value.n else ""
