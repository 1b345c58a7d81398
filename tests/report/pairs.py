"""Comparisons of preference trainings made from formulas, for the pages' tests."""

from __future__ import annotations

from functools import cache

import numpy as np

from dynolab.comparisons.pair_arms import chosen_changes, followed_answers
from dynolab.data.rows import ProbeRow
from dynolab.objectives import DPOConfig, SimPOConfig
from dynolab.objectives.pairs import DesignedDoseConfig
from dynolab.report.inputs.arms import PairRun
from dynolab.results.arms import ArmFacts, ComparedArms, Divergence, RunFigures
from dynolab.results.study import AlarmRing, ProbeScore, TrainingSummary
from dynolab.training.alarm import AlarmConfig
from tests.report.synthetic import DPO, Shape, line, probes, up

ARMS = {
    "dpo": ArmFacts(objective=DPOConfig()),
    "extended": ArmFacts(objective=DPOConfig(), start="extended"),
    "own": ArmFacts(objective=DPOConfig(), pairs="on_policy"),
    "simpo": ArmFacts(objective=SimPOConfig(), learning_rate=0.01),
    "alarm": ArmFacts(objective=DPOConfig(), alarm=AlarmConfig(rise=2.0)),
    "dose": ArmFacts(objective=DPOConfig(negative_dose=0.3)),
    "designed": ArmFacts(objective=DPOConfig(designed_dose=DesignedDoseConfig(per="pair"))),
}
SHAPES: dict[str, dict[str, Shape]] = {
    "dpo": DPO,
    "extended": DPO | {"chosen": line(-1.0), "argmax": up(1.5)},
    "own": DPO | {"chosen": line(-0.5), "argmax": up(0.5)},
    "simpo": DPO | {"chosen": line(-6.0)},
    "alarm": DPO | {"chosen": line(-1.0), "argmax": up(1.0)},
    "dose": DPO | {"chosen": line(0.1), "argmax": up(1.0)},
    "designed": DPO | {"chosen": line(0.2), "argmax": up(1.0)},
}


@cache
def scores(arm: str, seed: int) -> tuple[ProbeScore, ...]:
    return probes(SHAPES[arm], 100, seed=seed)


def run(arm: str, seed: int, *, diverged: bool = False) -> RunFigures:
    if diverged:
        return PairRun((), diverged=Divergence(step=31, reason="loss = nan")).row()
    rng = np.random.default_rng(seed)
    ring = AlarmRing(step=40, gap=6.0, rise=2.1, stopped=True) if arm == "alarm" else None
    noise = 0.01 * float(rng.normal())
    sampled = {
        # What a dose changes differs by seed, too.
        "train/right": 0.5 + noise + (0.1 + 0.1 * noise) * (arm == "dose"),
        "heldout/right": 0.3 + noise - (0.1 + 0.1 * noise) * (arm == "dose"),
        "heldout/wrong": 0.9,
        "train/distinct_2": 0.9 + noise,
        "train/longest_repeat": 1.0,
        "train/entropy": 6.0 + noise,
        "train/refused": 0.1,
    }
    if arm != "dpo":
        sampled |= {"train/won": 0.6 + noise, "heldout/won": 0.55 + noise}
    summary = TrainingSummary(steps=100, objective="dpo", rows={}, alarm=ring)
    return PairRun(scores(arm, seed), summary, sampled=sampled).row()


def watched(word: str, seed: int | None = None) -> list[ProbeRow]:
    """The chosen answers that every run watches; with `seed`, such as no other seed watches."""
    return [
        ProbeRow(
            pair_id=row.pair_id,
            split=row.split,
            kind="chosen",
            prompt=f"Why{'' if seed is None else f' {seed}'}?{word}",
            response=f" Because of {row.pair_id}.",
            made_by="data",
        )
        for row in probes({"chosen": DPO["chosen"]}, 1)
    ]


def mitigation(
    word: str = "",
    seeds: tuple[int, ...] = (0, 1, 2),
    lost: str | None = None,
    own_rows: bool = False,
    follow: tuple[str, ...] = (),
) -> ComparedArms:
    """Every hope appears but SimPO's; of the arm `lost` the first seed diverged.

    `own_rows`: every seed watches answers of its own.
    """
    changes = {
        arm: [
            {} if arm == lost and seed == seeds[0] else chosen_changes(scores(arm, seed))
            for seed in seeds
        ]
        for arm in ARMS
    }
    rows = [watched(word, seed if own_rows else None) for seed in seeds]
    return ComparedArms(
        name="remedies" + word,
        arms=ARMS,
        baseline="dpo",
        seeds=seeds,
        runs={
            arm: tuple(run(arm, seed, diverged=arm == lost and seed == seeds[0]) for seed in seeds)
            for arm in ARMS
        },
        training="All arms make 100 steps." + word,
        follow=follow,
        followed=followed_answers(changes, rows, "dpo", follow),
    )
