from __future__ import annotations

import numpy as np
import pytest

from dynolab.errors import ConfigError
from dynolab.probes.paths import (
    interval,
    learning_paths,
    paired_gain_difference,
    rise_then_fall,
)


def scores(means: dict[str, list[float]], pairs: int = 40, noise: float = 0.5) -> list[dict]:
    """Lines of probes.jsonl whose kinds have the given mean at steps 0, 10, 20 …"""
    rng = np.random.default_rng(1)
    offset = rng.normal(size=pairs)
    lines = []
    for kind, path in means.items():
        for number, mean in enumerate(path):
            for pair in range(pairs):
                logp = mean + offset[pair] + noise * rng.normal()
                line = {
                    "step": 10 * number, "pair_id": f"p{pair}", "split": "train", "kind": kind,
                    "tokens": 5, "logp": logp,
                }  # fmt: skip
                if kind == "chosen":
                    line["argmax_logp"] = logp + 3
                lines.append(line)
    return lines


def test_paths_by_split_and_kind_with_argmax_and_gap() -> None:
    paths = learning_paths(scores({"chosen": [-9, -5, -3]}))
    assert set(paths) == {("train", "chosen"), ("train", "argmax"), ("train", "gap")}
    path = paths["train", "chosen"]
    assert path.steps == (0, 10, 20) and path.logps.shape == (3, 40)
    assert np.allclose(paths["train", "gap"].logps, 3)
    for value, mean in zip(path.band(), (-9, -5, -3), strict=True):
        assert value.low < value.mean < value.high
        assert value.mean == pytest.approx(mean, abs=0.5)


@pytest.mark.parametrize(
    ("means", "shows", "peak"),
    [([-9, -5, -7], True, 10), ([-9, -7, -5], False, 20), ([-5, -7, -9], False, 0),
     ([-5, -5, -5], False, None)],
)  # fmt: skip
def test_rise_then_fall(means: list[float], shows: bool, peak: int | None) -> None:
    found = rise_then_fall(learning_paths(scores({"rejected": means}))["train", "rejected"])
    assert found.shows is shows
    assert peak is None or found.peak_step == peak


def test_paired_differences_see_what_the_spread_over_pairs_would_hide() -> None:
    paths = learning_paths(scores({"irr_train": [-9, -7.0], "irr_test": [-9, -7.4]}, noise=0.2))
    one, other = paths["train", "irr_train"], paths["train", "irr_test"]
    found = paired_gain_difference(one, other)
    assert found.sign == 1 and found.mean == pytest.approx(0.4, abs=0.2)
    assert paired_gain_difference(one, one).sign == 0


def test_pairs_that_miss_a_step_are_left_out() -> None:
    lines = scores({"chosen": [-9, -5]})
    path = learning_paths(lines[:-1])["train", "chosen"]
    assert len(path.pair_ids) == 39 and "p39" not in path.pair_ids


def test_a_step_written_twice_counts_once() -> None:
    lines = scores({"rejected": [-9, -5]})
    again = [line | {"logp": 0.0} for line in lines if line["step"] == 10]
    path = learning_paths([*lines, *again])["train", "rejected"]
    assert path.logps.shape == (2, 40) and np.all(path.logps[1] == 0)


def test_steps_that_were_not_probed_and_strange_pairs_are_refused() -> None:
    path = learning_paths(scores({"rejected": [-9, -5]}))["train", "rejected"]
    with pytest.raises(ConfigError, match="was not probed"):
        path.gain(until=7)
    lines = [line | {"pair_id": "x" + line["pair_id"]} for line in scores({"chosen": [1, 2]})]
    with pytest.raises(ConfigError, match="share no pairs"):
        paired_gain_difference(path, learning_paths(lines)["train", "chosen"])


def test_intervals_cover_the_mean_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    found = [interval(rng.exponential(size=100), draws=500) for _ in range(300)]
    covered = np.mean([one.low <= 1 <= one.high for one in found])
    assert 0.89 < covered < 0.98
