"""A comparison of arms made from formulas, for the page's tests."""

from __future__ import annotations

import numpy as np

from dynolab.objectives import AdvantageRuleConfig, GRPOConfig, SimKOConfig
from dynolab.report.inputs.arms import Evaluated, GroupPageInputs, GroupRun
from dynolab.report.inputs.study import StageFacts
from dynolab.results.groups import (
    CompletionForce,
    LikelihoodChange,
    PromptScore,
    QuestionDisplacement,
    TokenChoice,
)
from dynolab.results.study import MetricsLine, RisenMass, Training
from dynolab.training.config import OptimizerConfig
from tests.report.synthetic import DPO, forces, probes

SAMPLES, K = 16, 4
ARMS = {
    "grpo": GRPOConfig(),
    "nthr": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="nthr")),
    "simko": SimKOConfig(),
    "random": GRPOConfig(advantage_rule=AdvantageRuleConfig(name="random_tokens")),
}
SOLVED = {"before": 0.4, "grpo": 0.8, "nthr": 0.8, "simko": 0.8, "random": 0.8}
"""Chance of a right sample to a prompt that is solved at all."""
SOLVABLE = {"before": 0.9, "grpo": 0.6, "nthr": 0.7, "simko": 0.9, "random": 0.6}
"""Share of prompts that are solved at all: what pass@k goes to."""
LAZY = {"grpo": 0.5, "nthr": 0.1, "simko": 0.5, "random": 0.5}


def comparison(word: str = "", seeds: tuple[int, ...] = (0, 1, 2)) -> GroupPageInputs:
    """Every claim appears; `word` is added to every text that data could bring."""
    return GroupPageInputs(
        name="comparison" + word,
        arms=ARMS,
        baseline="grpo",
        epsilon=0.0,
        update=OptimizerConfig(name="sgd", learning_rate=0.01),
        k=K,
        starts={seed: _evaluated("before", seed, word) for seed in seeds},
        runs={(arm, seed): _run(arm, seed, word) for arm in ARMS for seed in seeds},
        settings=f"name: {word}",
        stages=(StageFacts(stage="start" + word, key="0" * 64, seconds=2.0),),
    )


def _evaluated(arm: str, seed: int, word: str) -> Evaluated:
    rng = np.random.default_rng(seed)
    prompts = []
    for split, count in (("train", 40), ("heldout", 20)):
        for number in range(count):
            solvable = number < (SOLVABLE[arm] + 0.01 * seed) * count
            prompts.append(
                PromptScore(
                    id=f"{split}-{number}{word}",
                    split=split,
                    samples=SAMPLES,
                    right=int(rng.binomial(SAMPLES, SOLVED[arm])) if solvable else 0,
                    distinct=6 if arm == "before" else 3,
                    finished=SAMPLES,
                    entropy=5.0 if arm == "before" else 4.0 + 0.01 * seed,
                    tokens=11.0,
                )
            )
    changes = tuple(
        LikelihoodChange(
            id=one.id,
            split=one.split,
            answers=2,
            before=-9.0,
            after=-9.5 + 0.1 * float(rng.normal()),
        )
        for one in prompts
        if arm != "before"
    )
    return Evaluated(tuple(prompts), changes)


def _run(arm: str, seed: int, word: str) -> GroupRun:
    rng = np.random.default_rng(seed)
    metrics = tuple(
        MetricsLine(
            step=step,
            examples=8 * step,
            time=0.0,
            metrics={
                "rollout/pass_at_1": 0.4 + 0.01 * step + 0.01 * float(rng.normal()),
                "rollout/entropy": 1.0 - 0.01 * step,
            },
        )
        for step in range(1, 31)
    )
    count = 20
    displaced = tuple(
        QuestionDisplacement(
            id=f"train-{number}{word}",
            samples=8,
            changes=(-0.2,) if number < LAZY[arm] * count + seed * (arm != "nthr") else (0.4, 0.2),
        )
        for number in range(count)
    )
    return GroupRun(
        _evaluated(arm, seed, word),
        metrics,
        displaced,
        completions=_completions(arm, rng, word),
        choices=_choices(arm, rng, word),
        training=Training(
            arm, arm, probes=probes(DPO, 30, seed=seed), forces=forces(arm, DPO, (3, 20))
        ),
        risen=tuple(_risen(f"{arm}-{seed}", step, rng) for step in (10, 30) for _ in range(6)),
    )


def _completions(arm: str, rng: np.random.Generator, word: str) -> tuple[CompletionForce, ...]:
    """Pushes on wrong answers drag right ones down, less under NTHR."""
    return tuple(
        CompletionForce(
            id=f"train-{number // 8}{word}",
            correct=correct,
            advantage=(0.9 if correct else -1.1) + 0.2 * float(rng.normal()),
            tokens=12,
            force=(3.0 if correct else -0.5 if arm == "nthr" else -2.0) + float(rng.normal()),
        )
        for number in range(160)
        for correct in (number % 8 < 3,)
    )


def _choices(arm: str, rng: np.random.Generator, word: str) -> tuple[TokenChoice, ...]:
    """NTHR chooses harmful tokens, the control any."""
    if arm not in ("nthr", "random"):
        return ()
    both = 9 if arm == "nthr" else 5
    return tuple(
        TokenChoice(
            id=f"train-{number}{word}",
            wrong=40,
            chosen=10,
            harmful=20,
            both=both - int(rng.integers(2)),
            harm=4.0,
            harm_chosen=both / 4,
            help_chosen=1.0,
        )
        for number in range(20)
    )


def _risen(training: str, step: int, rng: np.random.Generator) -> RisenMass:
    return RisenMass(
        training=training,
        step=step,
        pair_id=f"q{rng.integers(10)}",
        split="train",
        kind="chosen",
        tokens=8,
        risen=2.0,
        argmax=1.2 + 0.01 * step + 0.05 * float(rng.normal()),
        own=0.4,
    )
