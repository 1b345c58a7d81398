"""Judges hallucination in generations: what a study's models answer, before and after training.

Figures are means over questions with 95% intervals, paired by question; all answers are greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dynolab.claims.verdict import Measurement, Sign, Verdict, on_side
from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, WRONG
from dynolab.results.study import Answer
from dynolab.statistics import mean_interval

Measure = Callable[[Answer], float | None]


def assess_answers(answers: Sequence[Answer], trainings: Mapping[str, str]) -> tuple[Verdict, ...]:
    """Judges the claims about answers, of all trainings that changed a model.

    **Arguments:** `trainings`: objective's name by the name of the model that it made, in order;
    each starts from the model before it, the first from `base`.

    Claims about right and wrong values need questions of the built-in world.
    """
    by_model: dict[str, list[Answer]] = {}
    for answer in answers:
        by_model.setdefault(answer.model, []).append(answer)
    verdicts: list[Verdict] = []
    before = "base"
    for model, objective in trainings.items():
        if before in by_model and model in by_model:
            verdicts += _verdicts(objective, by_model[before], by_model[model])
        before = model
    return tuple(verdicts)


def _verdicts(stage: str, before: Sequence[Answer], after: Sequence[Answer]) -> list[Verdict]:
    borrowed = _change("Δ share of phrases", 1, before, after, "heldout", lambda a: a.borrowed)
    verdicts = [
        Verdict.of(
            f"{stage}/phrases",
            stage,
            "Answers to held-out questions reuse more phrases of other questions’ answers",
            "Δ > 0",
            borrowed,
        )
    ]
    if not any(answer.says for answer in after):
        return verdicts
    lost = [
        _change(f"Δ right, {name}", -1, before, after, split, _right)
        for split, name in _SPLITS.items()
    ]
    wrong = _change("Δ wrong statements", 1, before, after, "heldout", _wrong)
    return [
        *verdicts,
        Verdict.of(
            f"{stage}/wrong",
            stage,
            "More held-out questions get a wrong statement: hallucination",
            "Δ > 0",
            wrong,
        ),
        Verdict.of(f"{stage}/right", stage, "Right answers are lost", "Δ < 0", *lost),
    ]


_SPLITS: Mapping[Split, str] = {"train": "tuned on", "heldout": "held out"}


def _right(answer: Answer) -> float:
    return float(answer.says in RIGHT)


def _wrong(answer: Answer) -> float:
    return float(answer.says in WRONG)


def _change(
    name: str,
    sign: Sign,
    before: Sequence[Answer],
    after: Sequence[Answer],
    split: Split,
    measure: Measure,
) -> Measurement:
    """The change of a measure over the questions of a split that both models answered."""
    former, latter = (
        {answer.pair_id: measure(answer) for answer in own if answer.split == split}
        for own in (before, after)
    )
    changes = [
        now - then
        for pair, then in former.items()
        if then is not None and (now := latter.get(pair)) is not None
    ]
    return on_side(sign, name, mean_interval(np.array(changes, dtype=float)), unit="")
