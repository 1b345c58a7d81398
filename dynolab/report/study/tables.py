"""Tables of a study: changes by kind, the worst pairs, events, contrasts, kinds of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup
from numpy import ndarray

from dynolab.data.rows import ProbeRow
from dynolab.probes.events import GAP, Event
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.report.inputs.study import Training
from dynolab.report.page import Section, table
from dynolab.report.study.learning_paths import Paths, stages_of
from dynolab.report.style import SPLITS, in_order, objective_name, rank_of, style_of
from dynolab.report.text import excerpt, number, with_interval
from dynolab.report.words import Words
from dynolab.results.study import ARGMAX, PairChange
from dynolab.statistics import mean_interval

_SHOWN = ("chosen", "rejected", ARGMAX, GAP)
_HEADS = ("Δ chosen y⁺", "Δ rejected y⁻", "Δ y*", "Δ gap y* − y⁺")
WORST = 10  # number of pairs shown


def change_section(paths: Paths, words: Words) -> Section | None:
    """Mean changes of the pair, y* and the gap, by training and split; None without probes."""
    rows = [
        (objective_name(stage), name, *_changes(own), len(own.pairs))
        for stage in stages_of(paths)
        for split, name in SPLITS.items()
        if (own := paths.get((stage, split))) is not None
    ]
    head = ("training", "prompts", *_HEADS, "n")
    return words.section("changes", table(head, rows, "ssnnnnn", cards=True)) if rows else None


def contrast_section(own: Training, contrasts: Sequence[Training], words: Words) -> Section | None:
    """The same changes in a training and under other conditions; None without contrasts."""
    rows = [
        (name, *_changes(paths), len(paths.pairs))
        for name, training in [("this study", own), *((each.name, each) for each in contrasts)]
        if (paths := learning_paths(training.probes)) is not None
    ]
    shown = table(("training", *_HEADS, "n"), rows, "snnnnn")
    return words.section("contrasts", shown) if contrasts else None


def _changes(paths: LearningPaths) -> list[str]:
    values = [values_of(paths, kind) for kind in _SHOWN]
    return ["–" if own is None else with_interval(mean_interval(change(own))) for own in values]


def values_of(paths: LearningPaths, kind: str) -> ndarray | None:
    """Steps × pairs of a kind's log-probability or of the gap, in nats; None if not probed."""
    return paths.gap if kind == GAP else paths.logp.get(kind)


def pair_section(pairs: Sequence[PairChange], words: Words) -> Section | None:
    """The pairs whose chosen answers fell most, one by one; None without pairs.

    **Arguments:** `pairs`: worst first.
    """
    rows = [
        (
            pair.pair_id,
            "–" if pair.prompt is None else excerpt(pair.prompt, 90, end=True),
            *(number(v, sign=True) for v in (pair.chosen, pair.rejected, pair.margin, pair.gap)),
        )
        for pair in pairs[:WORST]
    ]
    head = ("pair", "prompt", "Δ chosen", "Δ rejected", "Δ margin", "Δ gap")
    return words.section("pairs", table(head, rows, "ssnnnn")) if rows else None


def event_section(events: Mapping[str, Sequence[Event]], words: Words) -> Section | None:
    """In which order paths peak, fall or widen the gap; `events` by the training's objective."""
    rows = [
        (
            objective_name(stage),
            event.step,
            # A style's label is escaped already.
            Markup(f"{'gap y* − y⁺' if event.kind == GAP else style_of(event.kind).label} ")
            + event.what,
            with_interval(event.before),
            with_interval(event.after),
        )
        for stage, own in events.items()
        for event in sorted(own, key=lambda event: (event.step, rank_of(event.kind), event.kind))
    ]
    head = ("training", "step", "what", "up to it or there", "after it or at the end")
    return words.section("events", table(head, rows, "snsnn")) if rows else None


def kind_section(paths: Paths, observed: Sequence[ProbeRow], words: Words) -> Section | None:
    """How every kind of answer was made, with one prompt's answers; None without probes."""
    made: dict[str, dict[str, None]] = {}
    for row in observed:
        made.setdefault(row.kind, {})[row.made_by] = None
    made[ARGMAX] = {"the model's likeliest token at every position along the chosen answer": None}
    examples = {
        row.kind: excerpt(row.response) for row in observed if row.pair_id == observed[0].pair_id
    }
    rows = [
        (
            Markup(style_of(kind).label),
            "; ".join(made.get(kind, ())) or "unknown",
            examples.get(kind, "–"),
        )
        for kind in in_order({kind for own in paths.values() for kind in own.logp})
    ]
    head = ("kind", "how it was made", "example")
    return words.section("kinds", table(head, rows)) if rows else None
