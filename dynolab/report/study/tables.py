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
    numbers,
    objective_name,
    rank_of,
    style_of,
    with_interval,
)
from dynolab.results.study import ARGMAX, PairChange, Training
from dynolab.statistics import column, mean_interval

_SHOWN = ("chosen", "rejected", ARGMAX, GAP)
_HEADS = ("Δ chosen y⁺", "Δ rejected y⁻", "Δ y*", "Δ gap y* − y⁺", "pairs")
WORST = 10  # number of pairs shown
_FORECASTS = {
    "logits": "one softmax",
    "own_token": "own token",
    "head": "head",
    "table": "shared table",
    "weights": "all weights",
    "batch": "whole batch",
}
_OF_PART = ("auc", "right", "flow", "flow_measured")


def change_section(paths: Paths, words: Words) -> Section | None:
    """Mean changes of the pair, y* and the gap, by training and split; None without probes."""
    rows = []
    for stage in stages_of(paths):
        for split, prompts in SPLITS.items():
            of_split = paths.get((stage, split))
            if of_split is not None:
                rows.append((objective_name(stage), prompts, *_changes(of_split)))
    return words.table("changes", ("training", "prompts", *_HEADS), rows, "ssnnnnn", cards=True)


def contrast_section(
    training: Training, contrasts: Sequence[Training], words: Words
) -> Section | None:
    """The same changes in a training and under other conditions; None without contrasts."""
    scores = {"this study": training.probes} | {other.name: other.probes for other in contrasts}
    rows = []
    for name, probes in scores.items():
        paths = learning_paths(probes)
        if paths is not None:
            rows.append((name, *_changes(paths)))
    shown = table(("training", *_HEADS), rows, "snnnnn")
    return words.section("contrasts", shown) if contrasts else None


def _changes(paths: LearningPaths) -> list[object]:
    """The mean change of every kind that is shown, and the number of pairs."""
    cells: list[object] = []
    for kind in _SHOWN:
        values = values_of(paths, kind)
        cells.append("–" if values is None else with_interval(mean_interval(change(values))))
    return [*cells, len(paths.pairs)]


def values_of(paths: LearningPaths, kind: str) -> ndarray | None:
    """Steps × pairs of a kind's log-probability or of the gap, in nats; None if not probed."""
    return paths.gap if kind == GAP else paths.logp.get(kind)


def pair_section(pairs: Sequence[PairChange], words: Words) -> Section | None:
    """The pairs whose chosen answers fell most, one by one; None without pairs.

    **Arguments:** `pairs`: worst first.
    """
    rows = []
    for pair in pairs[:WORST]:
        prompt = "–" if pair.prompt is None else excerpt(pair.prompt, 90, end=True)
        changes = numbers(pair.chosen, pair.rejected, pair.margin, pair.gap, sign=True)
        rows.append((pair.pair_id, prompt, *changes))
    head = ("pair", "prompt", "Δ chosen", "Δ rejected", "Δ margin", "Δ gap")
    return words.table("pairs", head, rows, "ssnnnn")


def event_section(events: Mapping[str, Sequence[Event]], words: Words) -> Section | None:
    """When paths peak, fall or widen the gap; `events` by the training's objective."""
    rows = []
    for objective, of_training in events.items():
        by_time = sorted(
            of_training, key=lambda event: (event.step, rank_of(event.kind), event.kind)
        )
        for event in by_time:
            label = "gap y* − y⁺" if event.kind == GAP else style_of(event.kind).label
            what = Markup(f"{label} ") + event.what  # a style's label is escaped already
            ends = with_interval(event.before), with_interval(event.after)
            rows.append((objective_name(objective), event.step, what, *ends))
    ends_head = ("Δ from start to this step", "Δ after a peak, else start to end")
    head = ("training", "step", "what", *ends_head)
    return words.table("events", head, rows, "snsnn")


def kind_section(paths: Paths, observed: Sequence[ProbeRow], words: Words) -> Section | None:
    """How every kind of answer was made, with one prompt's answers; None without probes."""
    made = grouped((row.kind, row.made_by) for row in observed)
    made[ARGMAX] = ["the model's likeliest token at every position along the chosen answer"]
    examples = {}
    for row in observed:
        if row.pair_id == observed[0].pair_id:
            examples[row.kind] = excerpt(row.response)
    kinds: set[str] = set()
    for of_training in paths.values():
        kinds |= of_training.logp.keys()
    rows = []
    for kind in in_order(kinds):
        makers = "; ".join(dict.fromkeys(made.get(kind, ()))) or "unknown"
        rows.append((Markup(style_of(kind).label), makers, examples.get(kind, "–")))
    return words.table("kinds", ("kind", "how it was made", "example"), rows)


def replay_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """Whether the analysed updates are those that training made; None without recorded steps."""
    rows = []
    for training in trainings:
        for row in training.replay:
            facts = numbers(row.learning_rate, row.grad_norm, row.clip_factor)
            errors = numbers(row.replay_error, row.rounding_floor, row.closure_error, digits=2)
            rows.append((objective_name(row.stage), row.step, *facts, *errors))
    head = ("training", "step", "learning rate", "gradient norm", "clip factor")
    errors_head = ("replay error", "rounding floor", "closure error")
    return words.table("replay", (*head, *errors_head), rows, "snnnnnnn")


def validity_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """What first order leaves of recorded steps, of each and of all up to it; None without any."""
    forces, changes = [], []
    for training in trainings:
        name = objective_name(training.stage)
        if training.forces:
            steps = {row.step for row in training.forces}
            missed = with_interval(unexplained(training.forces), sign=False)
            forces.append((name, len(training.forces), len(steps), missed))
        for row in training.validity:
            steps_moved = f"step {row.step}"
            if row.since is not None:
                steps_moved = f"steps {row.since}–{row.step}"
            radii = numbers(row.predicted, row.measured, digits=2)
            shares = _percent(row.unexplained), _percent(row.softmax)
            curvature = "" if row.falls is None else _percent(row.falls.curvature)
            changes.append((name, steps_moved, shares[0], *radii, shares[1], curvature))
    if not forces and not changes:
        return None
    head = (
        "training",
        "change",
        "unexplained by first order",
        "radius in which it holds, predicted",
        "radius, measured",
        "softmax’s share of the second order",
        "curvature’s share of falls",
    )
    return words.section(
        "validity",
        table(("training", "changes", "steps", "1 − R² [95 %]"), forces, "snnn"),
        table(head, changes, "ssnnnnn"),
    )


def far_steps(training: Training) -> list[int]:
    """Recorded steps that moved the weights too far for first order."""
    steps = []
    for row in training.validity:
        if row.since is None and row.unexplained > row.bound:
            steps.append(row.step)
    return steps


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


def layer_section(trainings: Sequence[Training], words: Words) -> Section | None:
    """How far a step moves every layer's features, and whether forces there agree."""
    rows = []
    for training in trainings:
        by_layer = grouped((row.layer, row) for row in training.layers)
        for layer, members in sorted(by_layer.items()):
            means = [column(members, name).mean() for name in ("moved", "resultant", "unexplained")]
            rows.append((objective_name(training.stage), layer, *numbers(*means, digits=2)))
    head = ("training", "blocks run", "‖Δh‖ / ‖h‖", "agreement of forces", "unexplained")
    return words.table("layers", head, rows, "snnnn")


def forecast_section(
    squeezing: Squeezing, titles: Mapping[str, str], words: Words
) -> Section | None:
    """How well first order predicts which tokens rise at a recorded step, and from which parts.

    None without forecasts. **Arguments:** `titles`: the trainings' names on the page, by name.
    """
    rows = []
    for row in squeezing.forecasts:
        training = titles.get(row["training"], row["training"])
        shares = [_percent(row[name] / row["tokens"]) for name in ("foretold", "rose", "right")]
        fits = numbers(row["auc"], row["auc_top"], row["auc_last_layer"], row["explained"])
        rows.append((training, row["step"], row["side"], *shares, *fits))
    by_part = grouped(
        ((row["rung"], row["training"], row["side"]), row) for row in squeezing.ladder
    )
    parts = []
    for rung, label in _FORECASTS.items():
        for (of_rung, training, side), members in by_part.items():
            if of_rung == rung:
                means = [np.mean([row[name] for row in members]) for name in _OF_PART]
                parts.append((titles.get(training, training), side, label, *numbers(*means)))
    if not rows and not parts:
        return None
    counts = ("predicted to rise", "rose", "right")
    fits_head = ("AUC", "AUC, top 20", "AUC of the head", "R² of the head")
    by_rung = ("AUC", "signs predicted", "flow to y*, predicted", "realised")
    return words.section(
        "forecast",
        table(("training", "step", "answers", *counts, *fits_head), rows, "snsnnnnnnn"),
        table(("training", "answers", "parts of first order", *by_rung), parts, "sssnnnn"),
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
    rows = []
    for name, command in commands.items():
        rows.append((words(f"try_{name}") or name, _COMMAND.format(command)))
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
