"""The papers' findings: what is there appears, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dynolab.claims.claim import judge
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.results.arms import (
    AFTER_EXTENDED,
    AFTER_SFT,
    FROM_BASE,
    IPO,
    ON_POLICY,
    ON_POLICY_IPO,
    RESAMPLED,
    SFT,
    TITLES,
)
from dynolab.statistics import Interval, mean_interval
from experiments.reproduce.claims import CLAIMS, assess_reproduction
from tests.report.synthetic import (
    DPO,
    SFT as SFT_SHAPES,
    Shape,
    line,
    probes,
    up,
    up_then_down,
)

_SFT = SFT_SHAPES | {"chosen_gptformat": line(-5.0), "chosen_gptsemantic": up(20.0, 20.0)}
_BASE = DPO | {"chosen": up_then_down(6.0, -12.0), "rejected": line(-60.0), "argmax": up(9.0)}
_EXTENDED = DPO | {"chosen": line(-1.0), "rejected": line(-9.0), "argmax": up(1.5)}
_OWN = DPO | {"chosen": line(-0.5), "argmax": line(-0.2)}


def paths(shapes: dict[str, Shape], seed: int = 0) -> LearningPaths:
    measured = learning_paths(probes(shapes, 100, seed=seed))
    assert measured is not None
    return measured


def outcomes(*seeds: dict[str, LearningPaths]) -> dict[str, str]:
    """What becomes of every claim, by its id."""
    return {verdict.id: verdict.outcome for verdict in assess_reproduction(seeds)}


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
    return {name: paths(own, seed) for name, own in shapes.items()}


@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_papers_shapes_all_appear(seeds: tuple[int, ...]) -> None:
    won = Interval(0.6, 0.55, 0.65, 100)
    verdicts = assess_reproduction([trainings(seed) for seed in seeds], won)
    assert not {verdict.id: verdict for verdict in verdicts if verdict.outcome != "holds"}
    assert len(verdicts) == len({verdict.id for verdict in verdicts}) == len(CLAIMS) + 1
    assert {verdict.topic for verdict in verdicts} <= set(TITLES)


def test_what_was_not_trained_or_watched_is_not_measured() -> None:
    whole = trainings()
    some = outcomes({name: own for name, own in whole.items() if name != AFTER_EXTENDED})
    of_extended = {some[name] for name in some if name.startswith(f"{AFTER_EXTENDED}/")}
    assert of_extended == {"not measured"} and some[f"{AFTER_SFT}/gap"] == "holds"
    without = replace(
        whole[SFT], logp={k: v for k, v in whole[SFT].logp.items() if k != "random_nonhum"}
    )
    assert outcomes(whole | {SFT: without})[f"{SFT}/nonhuman"] == "not measured"


def test_a_seed_that_lacks_a_training_leaves_no_mean_over_the_others() -> None:
    other = {name: own for name, own in trainings(1).items() if name != AFTER_SFT}
    judged = outcomes(trainings(), other)
    assert judged[f"{AFTER_SFT}/gap"] == "not measured"
    assert judged[f"{SFT}/gap"] == "holds"


def test_a_contrast_of_the_wrong_sign_does_not_appear() -> None:
    whole = trainings()
    turned = whole | {AFTER_EXTENDED: whole[AFTER_SFT], AFTER_SFT: whole[AFTER_EXTENDED]}
    judged = outcomes(turned)
    for name in ("chosen", "rejected", "gap", "argmax"):
        assert judged[f"{AFTER_EXTENDED}/{name}"] == "fails"


def test_over_seeds_the_interval_is_over_means_paired_by_seed() -> None:
    seeds = [trainings(seed) for seed in (0, 1, 2)]
    claim = next(claim for claim in CLAIMS if claim.id == f"{AFTER_EXTENDED}/chosen")
    means = [
        np.mean(change(own[AFTER_EXTENDED].logp["chosen"]) - change(own[AFTER_SFT].logp["chosen"]))
        for own in seeds
    ]
    assert judge(claim, seeds).measured[0].interval == mean_interval(np.array(means))
    both = judge(claim, seeds, same_pairs=True).measured[0].interval
    pairs = seeds[0][AFTER_SFT].pairs
    assert both.mean == pytest.approx(np.mean(means)) and (both.n, both.pairs) == (3, len(pairs))
    assert both.low < judge(claim, seeds).measured[0].low
    assert both.as_dict()["pairs"] == len(pairs)
