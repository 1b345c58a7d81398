"""The papers' findings: shapes that are there appear, others do not, missing ones say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dynolab.claims.claim import early, judge
from dynolab.claims.reproduction import (
    AFTER_EXTENDED,
    AFTER_SFT,
    CLAIMS,
    FROM_BASE,
    IPO,
    ON_POLICY,
    ON_POLICY_IPO,
    RESAMPLED,
    SFT,
    TITLES,
    assess_reproduction,
)
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.statistics import Interval, mean_interval
from tests.report.synthetic import DPO, SFT as SFT_SHAPES, Shape, line, probes, up, up_then_down

_SFT = SFT_SHAPES | {"chosen_gptformat": line(-5.0), "chosen_gptsemantic": up(20.0, 20.0)}
_BASE = DPO | {"chosen": up_then_down(6.0, -12.0), "rejected": line(-60.0), "argmax": up(9.0)}
_EXTENDED = DPO | {"chosen": line(-1.0), "rejected": line(-9.0), "argmax": up(1.5)}
_OWN = DPO | {"chosen": line(-0.5), "argmax": line(-0.2)}


def paths(shapes: dict[str, Shape], seed: int = 0) -> LearningPaths:
    found = learning_paths(probes(shapes, 100, seed=seed))
    assert found is not None
    return found


def trainings(seed: int = 0) -> dict[str, LearningPaths]:
    shapes = {
        SFT: _SFT,
        FROM_BASE: _BASE,
        AFTER_SFT: DPO,
        AFTER_EXTENDED: _EXTENDED,
        RESAMPLED: _OWN,
        ON_POLICY: _OWN,
        IPO: DPO,
        ON_POLICY_IPO: _OWN,
    }
    return {name: paths(one, seed) for name, one in shapes.items()}


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_papers_shapes_all_appear(seeds: tuple[int, ...]) -> None:
    found = assess_reproduction([trainings(seed) for seed in seeds], Interval(0.6, 0.55, 0.65, 100))
    missing = {one.id: one for one in found if one.outcome != "holds"}
    assert not missing
    assert len(found) == len({one.id for one in found}) == len(CLAIMS) + 1
    assert {one.topic for one in found} <= set(TITLES)


def test_what_was_not_trained_or_watched_is_not_measured() -> None:
    whole = trainings()
    some = {name: one for name, one in whole.items() if name != AFTER_EXTENDED}
    found = {one.id: one.outcome for one in assess_reproduction([some])}
    assert {one for name, one in found.items() if name.startswith(f"{AFTER_EXTENDED}/")} == {
        "not measured"
    }
    assert found[f"{AFTER_SFT}/gap"] == "holds"
    without = replace(
        whole[SFT], logp={k: v for k, v in whole[SFT].logp.items() if k != "random_nonhum"}
    )
    found = {one.id: one.outcome for one in assess_reproduction([whole | {SFT: without}])}
    assert found[f"{SFT}/nonhuman"] == "not measured"


def test_a_seed_that_lacks_a_training_leaves_no_mean_over_the_others() -> None:
    whole = trainings()
    rest = {name: one for name, one in whole.items() if name != AFTER_SFT}
    found = {one.id: one.outcome for one in assess_reproduction([whole, rest])}
    assert found[f"{AFTER_SFT}/gap"] == "not measured"
    assert found[f"{SFT}/gap"] == "holds"


def test_a_contrast_of_the_wrong_sign_does_not_appear() -> None:
    whole = trainings()
    turned = whole | {AFTER_EXTENDED: whole[AFTER_SFT], AFTER_SFT: whole[AFTER_EXTENDED]}
    found = {one.id: one.outcome for one in assess_reproduction([turned])}
    for name in ("chosen", "rejected", "gap", "argmax"):
        assert found[f"{AFTER_EXTENDED}/{name}"] == "fails"


def test_over_seeds_the_interval_is_over_means_paired_by_seed() -> None:
    seeds = [trainings(seed) for seed in (0, 1, 2)]
    claim = next(one for one in CLAIMS if one.id == f"{AFTER_EXTENDED}/chosen")
    means = [
        np.mean(change(one[AFTER_EXTENDED].logp["chosen"]) - change(one[AFTER_SFT].logp["chosen"]))
        for one in seeds
    ]
    assert judge(claim, seeds).measured[0].interval == mean_interval(np.array(means))


def test_early_is_the_last_probe_of_the_first_quarter() -> None:
    steps = np.arange(0, 101, 20)
    one = LearningPaths(steps, ("a",), {"chosen": steps[:, None] * 1.0})
    assert early(one, "chosen").tolist() == [20.0]
    few = LearningPaths(np.array([0, 50, 100]), ("a",), {"chosen": np.array([[0.0], [5.0], [9.0]])})
    assert early(few, "chosen").tolist() == [5.0]
