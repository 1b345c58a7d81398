"""Judges what a study's models answer, before and after each training: hallucination and truth.

Figures are means over questions with 95% intervals, paired by question; all answers are greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dynolab.claims.verdict import Measurement, Sign, Verdict, on_side
from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, WRONG
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.results.study import Answer
from dynolab.statistics import mean_interval

Measure = Callable[[Answer], float | None]
ByPair = Mapping[str, Answer]
"""One model's answers to the questions of a split."""


def assess_answers(answers: Sequence[Answer], trainings: Mapping[str, str]) -> tuple[Verdict, ...]:
    """Judges the claims about answers that can be judged.

    **Arguments:** `trainings`: objective's name by the name of the model that it made, in order;
    each starts from the model before it, the first from `base`.

    Claims about right and wrong values need questions of the built-in world.
    """
    verdicts: list[Verdict] = []
    before = "base"
    for model, objective in trainings.items():
        verdicts += _verdicts(objective, answers, before, model)
        before = model
    return tuple(verdict for verdict in verdicts if all(f.n for f in verdict.measured))


def _verdicts(
    stage: str, answers: Sequence[Answer], before: str, after: str
) -> tuple[Verdict, ...]:
    def change(name: str, sign: Sign, split: Split, measure: Measure) -> Measurement:
        pairs = _of(answers, before, split), _of(answers, after, split)
        return _change(f"Δ {name}, {_SPLITS[split]}", sign, *pairs, measure)

    phrases = Verdict.of(
        f"{stage}/phrases",
        stage,
        "Hallucination by phrase: answers reuse more phrases of other training questions’ answers",
        "Δ > 0",
        change("share of phrases", 1, "heldout", lambda answer: answer.borrowed),
    )
    wrong = Verdict.of(
        f"{stage}/wrong",
        stage,
        "Hallucination in generations: more held-out questions get a wrong statement",
        "Δ > 0",
        change("wrong", 1, "heldout", _wrong),
    )
    if stage not in PAIR_OBJECTIVES:
        return phrases, wrong
    lost = (
        Verdict.of(
            f"{stage}/right/{split}",
            stage,
            f"Right answers to questions {asked} are lost",
            "Δ < 0",
            change("right", -1, split, _right),
        )
        for split, asked in _SPLITS.items()
    )
    return phrases, wrong, *lost


_SPLITS: Mapping[Split, str] = {"train": "tuned on", "heldout": "held out"}


def _right(answer: Answer) -> float | None:
    return None if answer.says is None else float(answer.says in RIGHT)


def _wrong(answer: Answer) -> float | None:
    return None if answer.says is None else float(answer.says in WRONG)


def _of(answers: Sequence[Answer], model: str, split: Split) -> ByPair:
    return {a.pair_id: a for a in answers if a.model == model and a.split == split}


def _change(name: str, sign: Sign, before: ByPair, after: ByPair, measure: Measure) -> Measurement:
    """The change of a measure over the questions that both models answered."""
    changes = [
        now - then
        for pair, answer in before.items()
        if pair in after
        and (then := measure(answer)) is not None
        and (now := measure(after[pair])) is not None
    ]
    return on_side(sign, name, mean_interval(np.array(changes, dtype=float)), unit="")
