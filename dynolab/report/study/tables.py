"""The report's tables: events, contrasts, worst pairs, replay, kinds of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.rows import ProbeRow
from dynolab.probes.events import GAP, Event
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.report.inputs.study import Training
from dynolab.report.page import Section, section, table
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import in_order, objective_name, rank_of, style_of
from dynolab.report.text import excerpt, join, mean_and_ends, number, with_interval
from dynolab.results.study import ARGMAX, PairChange, ReplayFacts
from dynolab.statistics import mean_interval

_CONTRASTS = {
    "resampled": "rejected answers are sampled once from the policy that training starts from; "
    "those watched here are still the data's own",
    "flat-world": "a world whose answers prefer no style, from the base model on",
}
_WORST = 10  # number of pairs shown
_PROMPT = 90  # characters of a prompt


def event_section(events: Mapping[str, Sequence[Event]]) -> Section:
    """In which order paths peak, fall or widen the gap; `events` by the training's objective."""
    name, title = "events", "In which order"
    happened = {
        stage: sorted(own, key=lambda event: (event.step, rank_of(event.kind), event.kind))
        for stage, own in events.items()
        if own
    }
    if not happened:
        return section(name, title, "No path peaks, falls below its start or widens the gap.")
    amounts = Markup('<span class="num">{}</span>')
    rows = [
        (
            objective_name(stage),
            event.step,
            # A style's label is escaped already.
            Markup(f"{'gap y* − y⁺' if event.kind == GAP else style_of(event.kind).label} ")
            + event.what,
            amounts.format(_amounts(event)),
        )
        for stage, own in happened.items()
        for event in own
    ]
    return section(
        name,
        title,
        " ".join(_order(stage, own) for stage, own in happened.items()),
        table(("training", "step", "what", "how much, nats [95%]"), rows, "snss"),
        note="Means over training prompts. A path peaks if it rises and then falls, each beyond "
        "its interval, with the peak’s step chosen on the other half of the prompts. It falls "
        "below its start at the step from which on its interval stays below zero. The gap y* − y⁺ "
        "exceeds its start where its interval first lies above zero. Steps are those that were "
        "probed; intervals are for one step alone, so with many kinds a few may cross by chance.",
    )


def _amounts(event: Event) -> str:
    former, latter = with_interval(event.before), with_interval(event.after)
    if event.what == "peaks":
        return f"{former} up to it, {latter} after it"
    return f"{former} there, {latter} at the end"


def _order(stage: str, events: Sequence[Event]) -> str:
    """Events of the pair, of y* and of the gap; only counts those of other kinds."""
    names = {GAP: "the gap", ARGMAX: "y*"}
    own = [event for event in events if event.kind == GAP or style_of(event.kind).prominent]
    parts = [f"{names.get(e.kind, e.kind)} {e.what} (step {e.step})" for e in own]
    if others := len(events) - len(own):
        parts.append(f"{others} more of other kinds")
    return f"{objective_name(stage)}: {', '.join(parts)}."


def contrast_section(own: Training, contrasts: Sequence[Training]) -> Section:
    """Changes of the pair, of y* and of the gap in a training and in its contrasts."""
    named = [(f"this study's {objective_name(own.stage)}", own)]
    named += [(f"“{training.name}”", training) for training in contrasts]
    probed = [(name, paths) for name, each in named if (paths := learning_paths(each.probes))]
    gaps = [
        f"{mean_and_ends(mean_interval(change(paths.gap)))[0]} nats in {name}"
        for name, paths in probed
        if paths.gap is not None
    ]
    notes = [f"“{t.name}”: {_CONTRASTS[t.name]}" for t in contrasts if t.name in _CONTRASTS]
    kinds = ("chosen", "rejected", ARGMAX)
    return section(
        "contrasts",
        "The same training under other conditions",
        f"The gap from the chosen answer up to y* changes by {join(gaps)}."
        if gaps
        else "The gap was not measured.",
        table(
            ("training", *(f"Δ {style_of(kind).label}" for kind in kinds), "Δ gap y* − y⁺", "n"),
            [
                (name, *(_change(paths, kind) for kind in (*kinds, GAP)), len(paths.pairs))
                for name, paths in probed
            ],
            "snnnnn",
        ),
        note="Changes of log π since step 0 in nats, means over each training's own watched "
        f"training prompts [95%]. {'; '.join(notes)}{'.' if notes else ''}",
    )


def _change(paths: LearningPaths, kind: str) -> str:
    values = paths.gap if kind == GAP else paths.logp.get(kind)
    return "–" if values is None else with_interval(mean_interval(change(values)))


def pair_section(pairs: Sequence[PairChange], stage: str) -> Section:
    """The pairs whose chosen answers fared worst, one by one.

    **Arguments:** `pairs`: at least one, worst first; `stage`: the objective.
    """
    worst, fell = pairs[0], sum(pair.chosen < 0 for pair in pairs)
    rows = [
        (
            pair.pair_id,
            "–" if pair.prompt is None else excerpt(pair.prompt, _PROMPT, end=True),
            *(
                number(value, sign=True)
                for value in (pair.chosen, pair.rejected, pair.margin, pair.gap)
            ),
        )
        for pair in pairs[:_WORST]
    ]
    return section(
        "pairs",
        "The pairs that fared worst",
        f"{objective_name(stage)} lowered the chosen answer of {fell} of {len(pairs)} watched "
        f"training pairs; that of “{excerpt(worst.pair_id)}” changed by "
        f"{number(worst.chosen, sign=True)} nats.",
        table(
            ("pair", "prompt", "Δ log π chosen", "Δ log π rejected", "Δ margin", "Δ gap"),
            rows,
            "ssnnnn",
        ),
        note="Changes from start to end, nats; margin: chosen minus rejected; gap: y* minus "
        f"chosen, along the chosen answer. The worst {len(rows)} of {len(pairs)}; all are in "
        "the result’s pairs.jsonl and in MLflow’s table of this stage.",
    )


def replay_section(rows: Sequence[ReplayFacts]) -> Section:
    """Whether the analysed updates are the ones that training made."""
    if not rows:
        return section("replay", "Replay check", "No recorded step was replayed.")
    replay = max(rows, key=lambda row: row.replay_error)
    closure = max(rows, key=lambda row: row.closure_error)
    lines = [
        (
            objective_name(row.stage),
            row.step,
            *map(number, (row.learning_rate, row.grad_norm, row.clip_factor)),
            *(number(e, 2) for e in (row.replay_error, row.rounding_floor, row.closure_error)),
        )
        for row in rows
    ]
    return section(
        "replay",
        "Replay check",
        f"{len(rows)} recorded updates were computed again from their records. In their effect "
        f"on the watched answers, the parts differ from the update by at most "
        f"{number(closure.closure_error, 2)} ({_where(closure)}), over all weights by at most "
        f"{number(replay.replay_error, 2)} ({_where(replay)}), both relative.",
        table(
            (
                "stage",
                "step",
                "learning rate",
                "gradient norm",
                "clip factor",
                "replay error",
                "rounding floor",
                "closure error",
            ),
            lines,
            "snnnnnnn",
        ),
        note="A replay error near the rounding floor, which storing the weights leaves in a "
        "perfect replay, means that the replay is exact. If it is far above but the closure error "
        "is small, it is in weights that affect no answer (such as GPT-NeoX's key biases under "
        "AdamW). Only a large closure error would mean that the forces decompose another update.",
    )


def _where(row: ReplayFacts) -> str:
    return f"{objective_name(row.stage)} step {row.step}"


def kind_section(paths: Paths, watched: Sequence[ProbeRow]) -> Section:
    """How every kind of answer was made, with one prompt's answers as examples."""
    kinds = in_order({kind for own in paths.values() for kind in own.logp})
    made: dict[str, dict[str, None]] = {}
    for row in watched:
        made.setdefault(row.kind, {})[row.made_by] = None
    made[ARGMAX] = {"the model's likeliest token at every position along the chosen answer": None}
    example = {
        row.kind: excerpt(row.response) for row in watched if row.pair_id == watched[0].pair_id
    }
    prompt = f" The examples answer “{excerpt(watched[0].prompt, end=True)}”." if watched else ""
    rows = [
        (
            Markup(style_of(kind).label),
            "; ".join(made.get(kind, ())) or "unknown",
            example.get(kind, "–"),
        )
        for kind in kinds
    ]
    return section(
        "kinds",
        "The kinds of answers",
        f"{len(kinds)} kinds of answers were watched.{prompt}",
        table(("kind", "how it was made", "example"), rows),
    )
