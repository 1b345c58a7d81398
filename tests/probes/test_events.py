from __future__ import annotations

import numpy as np
import pytest

from dynolab.probes.paths import GAP, Event, LearningPaths, events_of, learning_paths
from tests.report.synthetic import DPO, SFT, line, probes, up_then_down

STEPS = np.arange(0, 101, 10)


def paths_of(pairs: int = 40, noise: float = 0.2, **means: list[float]) -> LearningPaths:
    """Paths about given means, one value per step; every pair has its own level and wobble."""
    rng = np.random.default_rng(0)
    level = rng.normal(-40, 5, pairs)
    logp = {}
    for kind, values in means.items():
        path = np.array(values)[:, None] + level + rng.normal(0, noise, (len(values), pairs))
        path[0] = values[0] + level
        logp[kind] = path
    steps = STEPS[: len(next(iter(means.values())))]
    return LearningPaths(steps, tuple(f"q{i}" for i in range(pairs)), logp)


def named(events: tuple[Event, ...]) -> list[tuple[int, str, str]]:
    return [(event.step, event.kind, event.what) for event in events]


def test_events_come_in_the_order_of_their_steps() -> None:
    paths = paths_of(
        chosen=[0, 1, 2, 3, 2, 1, -1, -2],
        rejected=[0, 0, -2, -4, -6, -8, -10, -12],
        argmax=[9, 10, 11, 12, 14, 15, 16, 17],
    )
    assert named(events_of(paths)) == [
        (20, "rejected", "falls below its start"),
        (30, "chosen", "peaks"),
        (40, GAP, "exceeds its start"),
        (60, "chosen", "falls below its start"),
    ]


def test_amounts_are_those_of_the_path() -> None:
    peak, fall = events_of(paths_of(chosen=[0, 2, 4, 1, -3], noise=0.1))
    assert (peak.before.mean, peak.after.mean) == pytest.approx((4, -7), abs=0.1)
    assert (fall.before.mean, fall.after.mean) == pytest.approx((-3, -3), abs=0.1)
    assert peak.before.low < peak.before.mean < peak.before.high
    assert peak.as_dict()["after"]["n"] == 40


def test_a_fall_that_does_not_last_is_none() -> None:
    assert named(events_of(paths_of(chosen=[0, -3, -3, 2, -1, -2]))) == [
        (30, "chosen", "peaks"),
        (40, "chosen", "falls below its start"),
    ]
    assert named(events_of(paths_of(chosen=[0, -3, -3, 2, 4]))) == []


def test_a_gap_that_closes_again_was_exceeded_all_the_same() -> None:
    events = events_of(paths_of(chosen=[0, 1, 2, 3], argmax=[5, 9, 6, 5]))
    assert (10, GAP, "exceeds its start") in named(events)


def test_paths_without_a_change_have_no_events() -> None:
    still = paths_of(chosen=[0] * 6, argmax=[4] * 6, noise=0.0)
    assert events_of(still) == ()
    one_pair = paths_of(pairs=1, chosen=[0, 3, -3])
    assert events_of(one_pair) == ()


def test_a_kind_that_no_pair_has_is_passed_over() -> None:
    paths = paths_of(rejected=[0, -2, -4])
    paths.logp["absent"] = np.full((3, 40), np.nan)
    assert named(events_of(paths)) == [(10, "rejected", "falls below its start")]


def test_the_papers_shapes_show_in_their_order() -> None:
    sft = learning_paths(probes(SFT | {"chosen_gptformat": up_then_down(14.0, -4.0)}, 100))
    dpo = learning_paths(probes(DPO | {"rejected": line(-20.0)}, 100))
    assert sft is not None and dpo is not None
    peak, fall = (event for event in events_of(sft) if event.kind == "chosen_gptformat")
    assert (peak.what, fall.what) == ("peaks", "falls below its start")
    assert peak.step in (30, 40, 50)
    assert peak.step < fall.step
    first = {(event.kind, event.what): event.step for event in reversed(events_of(dpo))}
    assert first[("rejected", "falls below its start")] <= first[(GAP, "exceeds its start")]
    assert ("chosen", "peaks") not in first
