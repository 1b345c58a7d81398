"""In which order a training's learning paths peak, fall and part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynolab.probes.events import GAP, Event
from dynolab.report.page import Html, section, table
from dynolab.report.style import objective_name, rank_of, style_of, with_interval
from dynolab.results.study import ARGMAX

_NAMES = {GAP: "the gap", ARGMAX: "y*"}


def event_section(events: Mapping[str, Sequence[Event]]) -> Html:
    """Step, what happens, how much; `events` by the training's objective."""
    name, title = "events", "In which order"
    happened = {stage: _ordered(found) for stage, found in events.items() if found}
    if not happened:
        return section(name, title, "No path peaks, falls below its start or widens the gap.")
    rows = [
        (
            objective_name(stage),
            event.step,
            Html(f"{_label(event.kind)} {event.what}"),
            Html(f'<span class="num">{_amounts(event)}</span>'),
        )
        for stage, found in happened.items()
        for event in found
    ]
    return section(
        name,
        title,
        " ".join(_sentence(stage, found) for stage, found in happened.items()),
        table(("training", "step", "what", "how much, nats [95%]"), rows, "snss"),
        note="Means over training prompts. A path peaks if it rises and then falls, each with its "
        "interval, the peak’s step chosen on the other half of the prompts. It falls below its "
        "start at the step from which on its interval stays below zero. The gap y* − y⁺ exceeds "
        "its start where its interval first lies above zero. Steps are those that were probed; "
        "intervals are of one step alone, so that of many kinds a few may cross by chance.",
    )


def _ordered(found: Sequence[Event]) -> list[Event]:
    """By step; at one step as legends order their kinds."""
    return sorted(found, key=lambda event: (event.step, rank_of(event.kind), event.kind))


def _label(kind: str) -> str:
    """Markup of a kind's name; a style's label is escaped already."""
    return "gap y* − y⁺" if kind == GAP else style_of(kind).label


def _amounts(event: Event) -> str:
    former, latter = with_interval(event.before), with_interval(event.after)
    if event.what == "peaks":
        return f"{former} up to it, {latter} after it"
    return f"{former} there, {latter} at the end"


def _sentence(stage: str, found: Sequence[Event]) -> str:
    """What the pair, y* and the gap do; other kinds are many, and the table has them."""
    own = [event for event in found if event.kind == GAP or style_of(event.kind).prominent]
    others = len(found) - len(own)
    told = [f"{_NAMES.get(e.kind, e.kind)} {e.what} (step {e.step})" for e in own]
    told += [f"{others} more of other kinds"] if others else []
    return f"{objective_name(stage)}: {', '.join(told)}."
