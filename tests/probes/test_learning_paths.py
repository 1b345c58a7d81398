from __future__ import annotations

import numpy as np
import pytest

from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.results.study import ARGMAX, ProbeScore


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
