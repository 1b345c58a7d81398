"""What follows from a study's results: paths, verdicts, pairs, and its numbers for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from dynolab.claims.study import assess, assess_answers
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import Split
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import (
    Event,
    LearningPaths,
    change,
    complete_pairs,
    events_of,
    learning_paths,
    pair_changes,
)
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.fallen import fallen_answers, prompt_of, strongest, summed_pushers
from dynolab.report.page import as_dicts
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import SPLITS, excerpt, numbers, percent, text_table
from dynolab.report.tables import outcome_counts
from dynolab.results.ledger_reader import Pulls
from dynolab.results.study import ForceRow, PairChange, ProbeScore
from dynolab.squeezing.index import chosen_by_step, squeeze_index
from dynolab.statistics import Interval, column, mean_interval


@dataclass(frozen=True)
class Found:
    """What follows from the inputs: paths, verdicts, events by objective, and pairs, worst first.

    `fell`: changes of the chosen answers in the last training on pairs, by split, in nats; `pulls`:
    the pairs that lowered those of the ledger that fell most.
    """

    paths: Paths
    verdicts: tuple[Verdict, ...]
    events: Mapping[str, tuple[Event, ...]]
    pairs: list[PairChange]
    prompts: Mapping[str, str]
    fell: Mapping[Split, np.ndarray]
    pulls: Pulls

    @property
    def harmless(self) -> bool:
        """Whether chosen answers clearly rose on average in every split, and few of them fell."""
        rose = [mean_interval(changes).low > 0 for changes in self.fell.values()]
        fell = [(changes < 0).mean() <= FEW_FALL for changes in self.fell.values()]
        return bool(rose) and all(rose + fell)


FEW_FALL = 0.1
"""Share of chosen answers up to which their fall is called few."""


def find(inputs: ReportInputs) -> Found:
    """Paths, verdicts, events and pairs of the trainings that were measured."""
    trainings = inputs.trainings
    paths: dict[tuple[str, Split], LearningPaths] = {}
    forces: list[ForceRow] = []
    for training in trainings:
        forces += training.forces
        scores: Sequence[ProbeScore] = training.probes
        if training.stage in PAIR_OBJECTIVES:
            scores = complete_pairs(scores)
        for split in SPLITS:
            of_split = learning_paths(scores, split)
            if of_split is not None:
                paths[training.stage, split] = of_split
    trained = {stage: of_split for (stage, split), of_split in paths.items() if split == "train"}
    paths_of = {training.stage: trained.get(training.stage) for training in trainings}
    objectives = {training.name: training.stage for training in trainings}
    verdicts = assess(paths_of, forces) + assess_answers(inputs.answers, objectives)
    prompts = {row.pair_id: row.prompt for row in inputs.watched if row.split == "train"}
    last = trainings[-1].stage if trainings else ""
    on_pairs = last in PAIR_OBJECTIVES
    return Found(
        paths=paths,
        verdicts=verdicts,
        events={stage: tuple(events_of(of_split)) for stage, of_split in trained.items()},
        pairs=pair_changes(trained[last], prompts) if on_pairs and last in trained else [],
        prompts=prompts,
        fell=_chosen_changes(inputs, paths, last) if on_pairs else {},
        pulls=Pulls.down(summed_pushers(inputs.ledger) if inputs.ledger else ()),
    )


def _chosen_changes(inputs: ReportInputs, paths: Paths, last: str) -> dict[Split, np.ndarray]:
    """Changes of all pairs' chosen answers in the last training, else of the observed, in nats."""
    changes: dict[Split, np.ndarray] = {}
    audited = inputs.audit.changes if inputs.audit else ()
    for split in SPLITS:
        of_split = column([row for row in audited if row.split == split], "change")
        observed = paths.get((last, split))
        if of_split.size:
            changes[split] = of_split
        elif observed is not None and "chosen" in observed.logp:
            changes[split] = change(observed.logp["chosen"])
    return changes


def changes_since_start(paths: Paths) -> dict[str, Interval]:
    """`<stage>/<kind>` and `<stage>/gap`: mean change since step 0, training prompts, nats."""
    changes: dict[str, Interval] = {}
    for (stage, split), of_split in paths.items():
        if split == "train":
            values = dict(of_split.logp)
            if of_split.gap is not None:
                values["gap"] = of_split.gap
            for name, value in values.items():
                changes[f"{stage}/{name}"] = mean_interval(change(value))
    return {name: interval for name, interval in changes.items() if interval.n}


def summarise(inputs: ReportInputs, results: Found) -> dict[str, Any]:
    """Changes since step 0, squeezing indices (`means`), verdicts, events, and a flat map of the
    finite numbers.

    `metrics` has `fall/pairs`, how many pairs lowered the answers that fell most, and
    `fall/pairs_of_half`, the fewest that make half of that; `<stage>/<kind>/change`,
    `<stage>/gap/change` (nats, training prompts), `force/<stage>/unexplained` (1 − R²),
    `force/replay_error` and `force/closure_error` (the worst), `claims/<outcome>`. `means` has
    `squeeze/index/<training>` at each training's end, on the chosen answers of training pairs: a
    share of the probability that rose, in [0, 1]; a
    training in which nothing rose is left out.
    """
    changes = changes_since_start(results.paths)
    # Comparisons of runs show the first number: that of the last training distinguishes them.
    metrics: dict[str, float] = {}
    for stage in (training.stage for training in reversed(inputs.trainings)):
        for name, interval in changes.items():
            if name.startswith(f"{stage}/"):
                metrics[f"{name}/change"] = interval.mean
    if results.pulls.half:
        metrics["fall/pairs"] = float(len(results.pulls.pushers))
        metrics["fall/pairs_of_half"] = float(results.pulls.half)
    metrics |= outcome_counts(results.verdicts)
    for verdict in results.verdicts:
        if verdict.id.endswith("/forces") and verdict.outcome != "not measured":
            metrics[f"force/{verdict.topic}/unexplained"] = verdict.measured[0].mean
    replay = [*chain(*(training.replay for training in inputs.trainings))]
    if replay:
        metrics["force/replay_error"] = max(row.replay_error for row in replay)
        metrics["force/closure_error"] = max(row.closure_error for row in replay)
    rows = inputs.squeezing.risen if inputs.squeezing else ()
    indices = {}
    for name, steps in chosen_by_step(rows).items():
        index = squeeze_index(steps[max(steps)])
        if index.n:
            indices[f"squeeze/index/{name}"] = index.as_dict()
    return {
        "study": inputs.facts.name,
        "seed": inputs.facts.seed,
        "metrics": metrics,
        "changes": as_dicts(changes),
        "means": indices,
        "verdicts": [verdict.summary() for verdict in results.verdicts],
        "events": {
            stage: [event.as_dict() for event in events] for stage, events in results.events.items()
        },
        "replay": [row.model_dump() for row in replay],
    }


_PRINTED = 5  # answers and pairs in a terminal


def printed(inputs: ReportInputs, results: Found) -> str:
    """The first tables of the page for a terminal: answers that fell, and pairs that pulled."""
    ledger = inputs.ledger
    answers = fallen_answers(ledger)[:_PRINTED] if ledger else []
    if ledger is None or not answers:
        head = ("pair", "Δ chosen", "Δ rejected", "Δ gap", "prompt")
        rows = []
        for pair in results.pairs[:_PRINTED]:
            changes = numbers(pair.chosen, pair.rejected, pair.gap, sign=True)
            rows.append((pair.pair_id, *changes, excerpt(pair.prompt or "", 40, end=True)))
        return text_table(head, rows, "snnns") if rows else ""
    fallen, pulled = [], []
    for answer in answers:
        name, of_own = answer.account.row.name, (answer.own_chosen, answer.own_rejected)
        nats = numbers(answer.change, *of_own, answer.others, sign=True)
        fallen.append((name, *nats, prompt_of(name, ledger.rows, 32)))
    for push, share in strongest(summed_pushers(ledger)):
        nats = numbers(push.total, push.from_chosen, push.from_rejected, sign=True)
        prompt = prompt_of(push.example, ledger.rows, 32)
        pulled.append((push.example, percent(share), *nats, prompt))
    first = "answer that fell" if answers[0].change < 0 else "answer that rose least"
    parts = ("own chosen", "own rejected", "other pairs")
    sides = ("share", "nats", "through chosen", "through rejected")
    tables = (
        text_table((first, "nats", *parts, "prompt"), fallen, "snnnns"),
        text_table(("pair that pulled", *sides, "prompt"), pulled, "snnnns"),
    )
    return "\n\n".join(tables)
