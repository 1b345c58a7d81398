"""Verdicts as judges give them, written short."""

from __future__ import annotations

from collections.abc import Mapping

from dynolab.results.judges import Contest, Judgement, Outcome, PolicyAnswer

OUTCOMES: dict[str, Outcome] = {
    "a": "a",
    "b": "b",
    "t": "tie",
    "r": "refused",
    "u": "unparsable",
    "f": "failed",
}


def judged(said: Mapping[str, str], judge: str = "judge") -> list[Judgement]:
    """`{"q1": "ab"}`: of q1 a is preferred as it stands, and b with b's answer first."""
    return [
        Judgement(
            judge=judge, id=name, a="one", b="two", swapped=bool(order), outcome=OUTCOMES[letter]
        )
        for name, letters in said.items()
        for order, letter in enumerate(letters)
    ]


def contest(
    answer_a: str = " yes",
    answer_b: str = " no",
    *,
    name: str = "q1",
    prompt: str = "well ?",
    truth: str | None = None,
) -> Contest:
    return Contest(
        id=name,
        prompt=prompt,
        truth=truth,
        a="one",
        b="two",
        answer_a=answer_a,
        answer_b=answer_b,
    )


def policy_answer(
    name: str, prompt: str, answer: str = "", truth: str | None = None
) -> PolicyAnswer:
    return PolicyAnswer(
        id=name,
        split="heldout",
        prompt=prompt,
        truth=truth,
        answer=answer,
        tokens=10,
        finished=True,
    )
