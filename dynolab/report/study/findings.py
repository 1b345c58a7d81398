"""What follows from a study's results: paths, verdicts, pairs, and its numbers for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dynolab.claims.study import assess, assess_answers
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import Split
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import (
    Event,
    change,
    complete_pairs,
    events_of,
    learning_paths,
    pair_changes,
)
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.fallen import PAIRS, fallen_answers, prompt_of, summed_pushers
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import SPLITS, excerpt, number, text_table
from dynolab.report.tables import outcome_counts
from dynolab.results.study import PairChange
from dynolab.squeezing.index import chosen_by_step, squeeze_index
from dynolab.statistics import Interval, mean_interval


@dataclass(frozen=True)
class Found:
    """What follows from the inputs: paths, verdicts, events by objective, and pairs, worst first.

    `fell`: changes of the chosen answers in the last training on pairs, by split, in nats.
    """

    paths: Paths
    verdicts: tuple[Verdict, ...]
    events: Mapping[str, tuple[Event, ...]]
    pairs: list[PairChange]
    prompts: Mapping[str, str]
    fell: Mapping[Split, np.ndarray]


def find(inputs: ReportInputs) -> Found:
    """Paths, verdicts, events and pairs of the trainings that were measured."""
    trainings = inputs.trainings
    probes = {
        training.stage: complete_pairs(training.probes)
        if training.stage in PAIR_OBJECTIVES
        else training.probes
        for training in trainings
    }
    paths = {
        (stage, split): own
        for stage, scores in probes.items()
        for split in SPLITS
        if (own := learning_paths(scores, split)) is not None
    }
    trained = {stage: own for (stage, split), own in paths.items() if split == "train"}
    verdicts = (
        *assess(
            {training.stage: trained.get(training.stage) for training in trainings},
            [row for training in trainings for row in training.forces],
        ),
        *assess_answers(inputs.answers, {t.name: t.stage for t in trainings}),
    )
    prompts = {row.pair_id: row.prompt for row in inputs.watched if row.split == "train"}
    last = trainings[-1].stage if trainings else ""
    on_pairs = last in PAIR_OBJECTIVES
    return Found(
        paths=paths,
        verdicts=verdicts,
        events={stage: tuple(events_of(own)) for stage, own in trained.items()},
        pairs=pair_changes(trained[last], prompts) if on_pairs and last in trained else [],
        prompts=prompts,
        fell=_chosen_changes(inputs, paths, last) if on_pairs else {},
    )


def _chosen_changes(inputs: ReportInputs, paths: Paths, last: str) -> dict[Split, np.ndarray]:
    """Changes of all pairs' chosen answers in the last training, else of the observed, in nats."""
    found: dict[Split, np.ndarray] = {}
    for split in SPLITS:
        audited = (
            [row.change for row in inputs.audit.changes if row.split == split]
            if inputs.audit
            else []
        )
        own = paths.get((last, split))
        if audited:
            found[split] = np.array(audited)
        elif own is not None and "chosen" in own.logp:
            found[split] = change(own.logp["chosen"])
    return found


def changes_since_start(paths: Paths) -> dict[str, Interval]:
    """`<stage>/<kind>` and `<stage>/gap`: mean change since step 0, training prompts, nats."""
    changes: dict[str, Interval] = {}
    for (stage, split), own in paths.items():
        if split == "train":
            values = dict(own.logp) | ({} if own.gap is None else {"gap": own.gap})
            for name, value in values.items():
                changes[f"{stage}/{name}"] = mean_interval(change(value))
    return {name: interval for name, interval in changes.items() if interval.n}


def summarise(inputs: ReportInputs, found: Found) -> dict[str, Any]:
    """Changes since step 0, squeezing indices (`means`), verdicts, events, and a flat map of the
    finite numbers.

    `metrics` has `<stage>/<kind>/change`, `<stage>/gap/change` (nats, training prompts),
    `force/<stage>/unexplained` (1 − R²), `force/replay_error` and `force/closure_error` (the
    worst), `claims/<outcome>`. `means` has `squeeze/index/<training>` at each training's end, on
    the chosen answers of training pairs: a share of the probability that rose, in [0, 1]; a
    training in which nothing rose is left out.
    """
    changes = changes_since_start(found.paths)
    # Comparisons of runs show the first number: that of the last training distinguishes them.
    stages = [training.stage for training in reversed(inputs.trainings)]
    last_first = [name for stage in stages for name in changes if name.startswith(f"{stage}/")]
    metrics = {
        **{f"{name}/change": changes[name].mean for name in (*last_first, *changes)},
        **outcome_counts(found.verdicts),
    }
    for verdict in found.verdicts:
        if verdict.id.endswith("/forces") and verdict.outcome != "not measured":
            metrics[f"force/{verdict.topic}/unexplained"] = verdict.measured[0].mean
    replay = [row for training in inputs.trainings for row in training.replay]
    if replay:
        metrics["force/replay_error"] = max(row.replay_error for row in replay)
        metrics["force/closure_error"] = max(row.closure_error for row in replay)
    rows = inputs.squeezing.risen if inputs.squeezing else ()
    indices = {
        f"squeeze/index/{name}": squeeze_index(steps[max(steps)])
        for name, steps in chosen_by_step(rows).items()
    }
    return {
        "study": inputs.facts.name,
        "seed": inputs.facts.seed,
        "metrics": metrics,
        "changes": {name: interval.as_dict() for name, interval in changes.items()},
        "means": {name: index.as_dict() for name, index in indices.items() if index.n},
        "verdicts": [verdict.summary() for verdict in found.verdicts],
        "events": {
            stage: [event.as_dict() for event in own] for stage, own in found.events.items()
        },
        "replay": [row.model_dump() for row in replay],
    }


_PRINTED = 5  # answers and pairs in a terminal


def printed(inputs: ReportInputs, found: Found) -> str:
    """The first tables of the page for a terminal: answers that fell, and pairs that pulled."""
    ledger = inputs.ledger
    if ledger is None or not (answers := fallen_answers(ledger)[:_PRINTED]):
        head = ("pair", "Δ chosen", "Δ rejected", "Δ gap", "prompt")
        rows = [
            (
                pair.pair_id,
                *(number(v, sign=True) for v in (pair.chosen, pair.rejected, pair.gap)),
                excerpt(pair.prompt or "", 40, end=True),
            )
            for pair in found.pairs[:_PRINTED]
        ]
        return text_table(head, rows, "snnns") if rows else ""
    fallen = [
        (
            own.account.row.name,
            *(
                number(nats, sign=True)
                for nats in (own.change, own.own_chosen, own.own_rejected, own.others)
            ),
            prompt_of(own.account.row.name, ledger.rows, 32),
        )
        for own in answers
    ]
    pulled = [
        (
            push.example,
            *(number(n, sign=True) for n in (push.total, push.from_chosen, push.from_rejected)),
            prompt_of(push.example, ledger.rows, 32),
        )
        for push in summed_pushers(ledger)[:PAIRS]
        if push.total < 0
    ]
    first = "answer that fell" if answers[0].change < 0 else "answer that rose least"
    parts = ("own chosen", "own rejected", "other pairs")
    sides = ("nats", "through chosen", "through rejected")
    tables = (
        text_table((first, "nats", *parts, "prompt"), fallen, "snnnns"),
        text_table(("pair that pulled", *sides, "prompt"), pulled, "snnns"),
    )
    return "\n\n".join(tables)
