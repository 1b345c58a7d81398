"""A comparison of policies as its stages leave it."""

from __future__ import annotations

import random

from dynolab.judges import win_rate
from dynolab.judges.config import (
    ExactJudgeConfig,
    JudgeConfig,
    JudgeEndpointConfig as Endpoint,
    LlmJudgeConfig,
)
from dynolab.report.comparison.judges import Judged, JudgePageInputs
from dynolab.report.inputs.study import StageFacts
from dynolab.results.judges import Judgement, Outcome, PolicyAnswer

POLICIES = ("dpo", "resampled")


def comparison(
    *, prompts: int = 40, text: str = "so it is", silent: bool = False, name: str = "judged"
) -> JudgePageInputs:
    """Two judges of which the second is noisier; `silent`: it never gives a verdict."""
    judges: dict[str, JudgeConfig] = {
        "exact": ExactJudgeConfig(),
        "gpt": LlmJudgeConfig(endpoint=Endpoint(model=text), criterion=text),
    }
    said = {
        policy: tuple(
            PolicyAnswer(
                id=f"q{n}",
                split="heldout",
                prompt=f"{text} {n} ?",
                truth=None,
                answer=f" {text} {policy}",
                finished=n % 5 > 0,
                tokens=4,
            )
            for n in range(prompts)
        )
        for policy in (*POLICIES, "sft")
    }
    judged = {
        judge: _judged(judge, prompts, share, silent and judge == "gpt", text)
        for judge, share in (("exact", 0.8), ("gpt", 0.6))
    }
    stages = (StageFacts(stage="judge", key="4f0c" * 16, seconds=3.0),)
    return JudgePageInputs(
        name=name,
        baseline="sft",
        judges=judges,
        temperature=1.0,
        answers=said,
        judged=judged,
        settings=f"name: {name}",
        stages=stages,
    )


def _judged(judge: str, prompts: int, share: float, silent: bool, text: str) -> Judged:
    rng, found, rates = random.Random(judge), [], []
    for policy in POLICIES:
        own = []
        for n in range(prompts):
            outcome: Outcome = "unparsable" if silent else "a" if rng.random() < share else "b"
            own += [
                Judgement(
                    judge=judge,
                    id=f"q{n}",
                    a=policy,
                    b="sft",
                    swapped=swapped,
                    outcome=outcome,
                    said=text if silent else "",
                )
                for swapped in (False, True)
            ]
        found += own
        rates.append(win_rate(own))
    return Judged(tuple(found), tuple(rates))
