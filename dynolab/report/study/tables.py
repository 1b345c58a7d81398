"""Tables of a study: changes, pairs, events, contrasts, kinds of answers, its checks, what to try.

Checks say how far a study's page can be trusted: replay, first order, the softmax rule.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy import ndarray

from dynolab.claims.study import unexplained
from dynolab.data.rows import ProbeRow
from dynolab.grouping import grouped
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import GAP, Event, LearningPaths, change, learning_paths
from dynolab.report.inputs.study import ReportInputs, Squeezing
from dynolab.report.ledger.fallen import fallen_accounts
from dynolab.report.page import Section, Words, table
from dynolab.report.study.learning_paths import Paths, stages_of
from dynolab.report.style import (
    SPLITS,
    excerpt,
    in_order,
    number,
    objective_name,
    rank_of,
    style_of,
    with_interval,
)
from dynolab.results.study import ARGMAX, PairChange, Training
from dynolab.statistics import mean_interval

_SHOWN = ("chosen", "rejected", ARGMAX, GAP)
_HEADS = ("Δ chosen y⁺", "Δ rejected y⁻", "Δ y*", "Δ gap y* − y⁺")
WORST = 10  # number of pairs shown
_FORECASTS = {
    "logits": "one softmax",
    "own_token": "own token",
    "head": "head",
    "table": "shared table",
    "weights": "all weights",
    "batch": "whole batch",
}


def change_section(paths: Paths, words: Words) -> Section | None:
    """Mean changes of the pair, y* and the gap, by training and split; None without probes."""
    rows = [
        (objective_name(stage), name, *_changes(own), len(own.pairs))
        for stage in stages_of(paths)
        for split, name in SPLITS.items()
        if (own := paths.get((stage, split))) is not None
    ]
    return words.table(
        "changes", ("training", "prompts", *_HEADS, "n"), rows, "ssnnnnn", cards=True
    )


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
    return words.table("pairs", head, rows, "ssnnnn")


def event_section(events: Mapping[str, Sequence[Event]], words: Words) -> Section | None:
    """When paths peak, fall or widen the gap; `events` by the training's objective."""
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
    return words.table("events", head, rows, "snsnn")


def kind_section(paths: Paths, observed: Sequence[ProbeRow], words: Words) -> Section | None:
    """How every kind of answer was made, with one prompt's answers; None without probes."""
    made = {
        **grouped((row.kind, row.made_by) for row in observed),
        ARGMAX: ["the model's likeliest token at every position along the chosen answer"],
    }
    examples = {
        row.kind: excerpt(row.response) for row in observed if row.pair_id == observed[0].pair_id
    }
    rows = [
        (
            Markup(style_of(kind).label),
            "; ".join(dict.fromkeys(made.get(kind, ()))) or "unknown",
            examples.get(kind, "–"),
        )
        for kind in in_order({kind for own in paths.values() for kind in own.logp})
    ]
    return words.table("kinds", ("kind", "how it was made", "example"), rows)


def replay_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """Whether the analysed updates are those that training made; None without recorded steps."""
    rows = [
        (
            objective_name(row.stage),
            row.step,
            *map(number, (row.learning_rate, row.grad_norm, row.clip_factor)),
            *(number(e, 2) for e in (row.replay_error, row.rounding_floor, row.closure_error)),
        )
        for training in trainings
        for row in training.replay
    ]
    head = ("training", "step", "learning rate", "gradient norm", "clip factor")
    errors = ("replay error", "rounding floor", "closure error")
    return words.table("replay", (*head, *errors), rows, "snnnnnnn")


def validity_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """What first order leaves of recorded steps, of each and of all up to it; None without any."""
    forces = [
        (
            objective_name(training.stage),
            len(training.forces),
            len({row.step for row in training.forces}),
            with_interval(unexplained(training.forces), sign=False),
        )
        for training in trainings
        if training.forces
    ]
    changes = [
        (
            objective_name(training.stage),
            f"step {own.step}" if own.since is None else f"steps {own.since}–{own.step}",
            _percent(own.unexplained),
            number(own.predicted, 2),
            number(own.measured, 2),
            _percent(own.softmax),
        )
        for training in trainings
        for own in training.validity
    ]
    if not forces and not changes:
        return None
    heads = (
        "training",
        "change",
        "unexplained",
        "radius, predicted",
        "measured",
        "of it the softmax",
    )
    return words.section(
        "validity",
        table(("training", "changes", "steps", "1 − R² [95 %]"), forces, "snnn"),
        table(heads, changes, "ssnnns"),
    )


def far_steps(training: Training) -> list[int]:
    """Recorded steps that moved the weights too far for first order."""
    alone = [own for own in training.validity if own.since is None]
    return [own.step for own in alone if own.unexplained > own.bound]


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def layer_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """How far a step moves every layer's features, and whether forces there agree."""
    rows = [
        (
            objective_name(training.stage),
            layer,
            *(
                number(np.mean([getattr(row, name) for row in own]), 2)
                for name in ("moved", "resultant", "unexplained")
            ),
        )
        for training in trainings
        for layer in sorted({row.layer for row in training.layers})
        for own in [[row for row in training.layers if row.layer == layer]]
    ]
    head = ("training", "blocks run", "‖Δh‖ / ‖h‖", "agreement of forces", "unexplained")
    return words.table("layers", head, rows, "snnnn")


def forecast_section(
    squeezing: Squeezing, titles: Mapping[str, str], words: Words
) -> Section | None:
    """How well first order predicts which tokens rise at a recorded step, and from which parts.

    None without forecasts. **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    rows = [
        (
            titles.get(row["training"], row["training"]),
            row["step"],
            row["side"],
            *(_percent(row[name] / row["tokens"]) for name in ("foretold", "rose", "right")),
            *(number(row[name]) for name in ("auc", "auc_top", "auc_last_layer", "explained")),
        )
        for row in squeezing.forecasts
    ]
    ladder = sorted(squeezing.ladder, key=lambda row: list(_FORECASTS).index(row["rung"]))
    by_part = grouped(((row["training"], row["side"], row["rung"]), row) for row in ladder)
    parts = [
        (
            titles.get(training, training),
            side,
            _FORECASTS[rung],
            *(
                number(np.mean([row[name] for row in own]))
                for name in ("auc", "right", "flow", "flow_measured")
            ),
        )
        for (training, side, rung), own in by_part.items()
    ]
    if not rows and not parts:
        return None
    counts = ("predicted to rise", "rose", "right")
    fits = ("AUC", "AUC, top 20", "AUC of the head", "R² of the head")
    kept = ("AUC", "signs predicted", "flow to y*, predicted", "realised")
    return words.section(
        "forecast",
        table(("training", "step", "answers", *counts, *fits), rows, "snsnnnnnnn"),
        table(("training", "answers", "kept of first order", *kept), parts, "sssnnnn"),
    )


_COMMAND = Markup('<pre class="command">{}</pre>')


def try_section(inputs: ReportInputs, pairs: Sequence[PairChange]) -> Section | None:
    """A table of commands that go on from a study, ready for pasting; None without any.

    **Arguments:** `pairs`: the last training's changes, worst first.
    """
    facts, trainings = inputs.facts, inputs.trainings
    commands = dict(inputs.compared.missing)
    if facts.explore_command and any(training.probes for training in trainings):
        commands = {"explore": facts.explore_command} | commands
    if facts.map_command and pairs:
        commands = {"map": with_pairs(facts.map_command, _to_map(inputs, pairs))} | commands
    if facts.remedies_command and trainings and trainings[-1].stage in PAIR_OBJECTIVES:
        commands = {"remedies": facts.remedies_command} | commands
    words = Words("study.html", facts=facts)
    rows = [(words(f"try_{name}") or name, _COMMAND.format(own)) for name, own in commands.items()]
    return words.table("try-next", ("to", "run"), rows)


def _to_map(inputs: ReportInputs, pairs: Sequence[PairChange]) -> list[str]:
    """The training pair whose chosen answer fell most, with the one that pulled it down hardest."""
    if inputs.ledger is not None:
        for account in fallen_accounts(inputs.ledger):
            if account.row.split == "train":
                hardest = inputs.ledger.pushers(account.lines)[0].example
                return list(dict.fromkeys((account.row.name, hardest)))
    return [pairs[0].pair_id]


def with_pairs(command: str, pairs: list[str]) -> str:
    """The full command for pairs; quoted, so that no shell interprets an id."""
    # Unprintable characters, such as line ends, are escaped.
    listed = json.dumps(pairs, ensure_ascii=not all(map(str.isprintable, pairs)))
    return f"{command} --set {shlex.quote(f'analysis.pair_ids={listed}')}"
