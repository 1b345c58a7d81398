"""The numbers of a report, for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynolab.claims.verdict import Verdict
from dynolab.probes.paths import Event, change
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.study.learning_paths import Paths
from dynolab.report.verdicts import outcome_counts
from dynolab.squeezing.index import chosen_by_step, squeeze_index
from dynolab.statistics import Interval, mean_interval


def changes_since_start(paths: Paths) -> dict[str, Interval]:
    """`<stage>/<kind>` and `<stage>/gap`: mean change since step 0, training prompts, nats."""
    changes: dict[str, Interval] = {}
    for (stage, split), own in paths.items():
        if split == "train":
            values = dict(own.logp) | ({} if own.gap is None else {"gap": own.gap})
            for name, value in values.items():
                changes[f"{stage}/{name}"] = mean_interval(change(value))
    return {name: interval for name, interval in changes.items() if interval.n}


def summarise(
    inputs: ReportInputs,
    changes: Mapping[str, Interval],
    verdicts: Sequence[Verdict],
    events: Mapping[str, Sequence[Event]],
) -> dict[str, Any]:
    """Changes since step 0, squeezing indices (`means`), verdicts, events, and a flat map of the
    finite numbers.

    `metrics` has `<stage>/<kind>/change`, `<stage>/gap/change` (nats, training prompts),
    `force/<stage>/unexplained` (1 − R²), `force/replay_error` and `force/closure_error` (the
    worst), `claims/<outcome>`.
    """
    # Comparisons of runs show the first number: that of the last training distinguishes them.
    stages = [training.stage for training in reversed(inputs.trainings)]
    last_first = [name for stage in stages for name in changes if name.startswith(f"{stage}/")]
    metrics = {
        **{f"{name}/change": changes[name].mean for name in (*last_first, *changes)},
        **outcome_counts(verdicts),
    }
    for verdict in verdicts:
        if verdict.id.endswith("/forces") and verdict.outcome != "not measured":
            metrics[f"force/{verdict.topic}/unexplained"] = verdict.measured[0].mean
    replay = [row for training in inputs.trainings for row in training.replay]
    if replay:
        metrics["force/replay_error"] = max(row.replay_error for row in replay)
        metrics["force/closure_error"] = max(row.closure_error for row in replay)
    return {
        "study": inputs.facts.name,
        "seed": inputs.facts.seed,
        "metrics": metrics,
        "changes": {name: interval.as_dict() for name, interval in changes.items()},
        "means": squeeze_indices(inputs),
        "verdicts": [verdict.summary() for verdict in verdicts],
        "events": {stage: [event.as_dict() for event in own] for stage, own in events.items()},
        "replay": [row.model_dump() for row in replay],
    }


def squeeze_indices(inputs: ReportInputs) -> dict[str, dict[str, float | int | None]]:
    """`squeeze/index/<training>` at each training's end, on the chosen answers of training pairs.

    A share of the probability that rose, in [0, 1], as `mean`, `low`, `high` and `n` pairs; a
    training in which nothing rose is left out.
    """
    rows = inputs.squeezing.risen if inputs.squeezing else ()
    indices = {
        f"squeeze/index/{name}": squeeze_index(steps[max(steps)])
        for name, steps in chosen_by_step(rows).items()
    }
    return {name: index.as_dict() for name, index in indices.items() if index.n}
