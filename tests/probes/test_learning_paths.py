"""Learning paths of probe scores, what happens on them, and what each pair's answers did."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.data.rows import Split
from dynolab.probes.paths import (
    GAP,
    Event,
    LearningPaths,
    change,
    complete_pairs,
    events_of,
    learning_paths,
    pair_changes,
)
from dynolab.results.study import ARGMAX, ProbeScore
from tests.report.synthetic import DPO, SFT, line, probes, up_then_down


def row(step: int, pair: str, logp: float, kind: str = "chosen", **more: object) -> ProbeScore:
    return ProbeScore.model_validate(
        {"step": step, "pair_id": pair, "split": "train", "kind": kind, "tokens": 5, "logp": logp}
        | more
    )


def paths_of(rows: list[ProbeScore]) -> LearningPaths:
    return learning_paths(rows) or pytest.fail("no paths")


def test_paths_by_kind_with_argmax_and_gap() -> None:
    rows = [
        row(step, pair, -9.0 + step, argmax_logp=-6.0 + 2 * step)
        for step in (0, 5)
        for pair in ("b", "a")
    ]
    paths = paths_of(rows)
    assert paths.pairs == ("a", "b") and paths.steps.tolist() == [0, 5]
    assert set(paths.logp) == {"chosen", ARGMAX}
    np.testing.assert_allclose(paths.since_start("chosen"), [[0, 0], [5, 5]])
    np.testing.assert_allclose(change(paths.logp[ARGMAX]), [10, 10])
    assert paths.gap is not None
    np.testing.assert_allclose(paths.gap, [[3, 3], [8, 8]])


def test_a_pair_that_misses_a_step_is_left_out_of_that_kind() -> None:
    rows = [
        row(step, pair, -1.0, kind)
        for kind in ("chosen", "rejected")
        for step in (0, 5, 9)
        for pair in ("a", "b")
        if (kind, step, pair) != ("rejected", 5, "b")
    ]
    paths = paths_of(rows)
    assert np.isfinite(paths.logp["chosen"]).all()
    assert np.isfinite(paths.logp["rejected"]).tolist() == [[True, False]] * 3


def test_a_kind_may_be_probed_at_fewer_steps() -> None:
    rows = [row(step, "a", -1.0) for step in (0, 5, 9)] + [row(5, "a", -2.0, "irr_hum")]
    paths = paths_of(rows)
    np.testing.assert_array_equal(paths.logp["irr_hum"][:, 0], [np.nan, -2.0, np.nan])


def test_a_step_written_twice_counts_once() -> None:
    paths = paths_of([row(0, "a", -9.0), row(5, "a", -5.0), row(5, "a", 0.0)])
    assert paths.logp["chosen"].tolist() == [[-9.0], [0.0]]


def test_one_probed_step_is_no_path() -> None:
    assert learning_paths([row(0, "a", -9.0)]) is None
    assert learning_paths([row(0, "a", -9.0), row(5, "a", -5.0)], "heldout") is None


STEPS = np.arange(0, 101, 10)


def paths_about(pairs: int = 40, noise: float = 0.2, **means: list[float]) -> LearningPaths:
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
    paths = paths_about(
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
    peak, fall = events_of(paths_about(chosen=[0, 2, 4, 1, -3], noise=0.1))
    assert (peak.before.mean, peak.after.mean) == pytest.approx((4, -7), abs=0.1)
    assert (fall.before.mean, fall.after.mean) == pytest.approx((-3, -3), abs=0.1)
    assert peak.before.low < peak.before.mean < peak.before.high
    assert peak.as_dict()["after"]["n"] == 40


def test_a_fall_that_does_not_last_is_none() -> None:
    assert named(events_of(paths_about(chosen=[0, -3, -3, 2, -1, -2]))) == [
        (30, "chosen", "peaks"),
        (40, "chosen", "falls below its start"),
    ]
    assert named(events_of(paths_about(chosen=[0, -3, -3, 2, 4]))) == []


def test_a_gap_that_closes_again_was_exceeded_all_the_same() -> None:
    events = events_of(paths_about(chosen=[0, 1, 2, 3], argmax=[5, 9, 6, 5]))
    assert (10, GAP, "exceeds its start") in named(events)


def test_paths_without_a_change_have_no_events() -> None:
    still = paths_about(chosen=[0] * 6, argmax=[4] * 6, noise=0.0)
    assert events_of(still) == ()
    one_pair = paths_about(pairs=1, chosen=[0, 3, -3])
    assert events_of(one_pair) == ()


def test_a_kind_that_no_pair_has_is_passed_over() -> None:
    paths = paths_about(rejected=[0, -2, -4])
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


def two_steps(**logp: list[list[float]]) -> LearningPaths:
    """Paths of three pairs at two steps."""
    arrays = {kind: np.array(values, dtype=float) for kind, values in logp.items()}
    return LearningPaths(np.array([0, 10]), ("a", "b", "c"), arrays)


def test_pairs_come_worst_first_with_their_changes() -> None:
    paths = two_steps(
        chosen=[[-10, -10, -10], [-9, -14, -11]],
        rejected=[[-10, -10, -10], [-12, -13, -30]],
        argmax=[[-4, -4, -4], [-4, -3, -5]],
    )
    rows = pair_changes(paths, {"a": "what ?", "b": "who ?"})
    assert [(r.pair_id, r.prompt, r.chosen, r.rejected, r.margin, r.gap) for r in rows] == [
        ("b", "who ?", -4, -3, -1, 5),
        ("c", None, -1, -20, 19, 0),
        ("a", "what ?", 1, -2, 3, -1),
    ]


def test_what_was_not_watched_is_none() -> None:
    nan = float("nan")
    paths = two_steps(
        chosen=[[-1, -1, nan], [-2, -4, nan]], rejected=[[-1, nan, -1], [-2, nan, -3]]
    )
    rows = pair_changes(paths, {})
    assert [(r.pair_id, r.chosen, r.rejected, r.margin, r.gap) for r in rows] == [
        ("b", -3, None, None, None),
        ("a", -1, -1, 0, None),
    ]
    assert pair_changes(two_steps(rejected=[[-1, -1, -1], [-2, -2, -2]]), {}) == []


def test_a_pair_without_one_of_its_answers_is_left_out() -> None:
    def score(pair: str, kind: str, split: Split = "train") -> ProbeScore:
        return ProbeScore(step=0, pair_id=pair, split=split, kind=kind, logp=-1, tokens=1)

    a, b = score("a", "chosen"), score("b", "chosen")
    whole = [a, score("a", "rejected"), score("a", "other")]
    assert complete_pairs([*whole, b, score("b", "other"), score("c", "rejected")]) == whole
    heldout = score("a", "chosen", "heldout")
    assert complete_pairs([*whole, heldout]) == whole
    assert complete_pairs([a, b]) == [a, b]
