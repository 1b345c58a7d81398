"""Judges what a study's models answer, before and after each training: hallucination and truth.

Figures are means over questions with 95% intervals, paired by question; all answers are greedy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from dynolab.claims.verdict import Claimed, Measurement, Sign, Verdict, judged, on_side
from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, WRONG
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.results.study import Answer
from dynolab.statistics import mean_interval

Measure = Callable[[Answer], float | None]


def assess_answers(answers: Sequence[Answer], trainings: Mapping[str, str]) -> tuple[Verdict, ...]:
    """Judges the claims about answers that can be judged.

    **Arguments:** `trainings`: objective's name by the name of the model that it made, in order;
    each starts from the model before it, the first from `base`.

    Claims about right and wrong values need questions of the built-in world.
    """
    verdicts: list[Verdict] = []
    before = "base"
    for model, objective in trainings.items():
        verdicts += judged(objective, objective, _claims(objective, answers, before, model))
        before = model
    return tuple(verdict for verdict in verdicts if all(f.n for f in verdict.measured))


def _claims(objective: str, answers: Sequence[Answer], before: str, after: str) -> list[Claimed]:
    def change(name: str, sign: Sign, split: Split, measure: Measure) -> Measurement:
        """The change of a measure over the questions that both models answered."""
        then, now = (
            {a.pair_id: measure(a) for a in answers if a.model == model and a.split == split}
            for model in (before, after)
        )
        changes = [
            new - old
            for pair, old in then.items()
            if old is not None and (new := now.get(pair)) is not None
        ]
        interval = mean_interval(np.array(changes, dtype=float))
        return on_side(sign, f"Δ {name}, {_SPLITS[split]}", interval, unit="")

    claims: list[Claimed] = [
        (
            "phrases",
            "Hallucination by phrase: answers reuse more phrases of other training questions’ "
            "answers",
            "Δ > 0",
            change("share of phrases", 1, "heldout", lambda answer: answer.borrowed),
        ),
        (
            "wrong",
            "Hallucination in generations: more held-out questions get a wrong statement",
            "Δ > 0",
            change("wrong", 1, "heldout", _share_of(WRONG)),
        ),
    ]
    if objective in PAIR_OBJECTIVES:
        claims += [
            (
                f"right/{split}",
                f"Right answers to questions {asked} are lost",
                "Δ < 0",
                change("right", -1, split, _share_of(RIGHT)),
            )
            for split, asked in _SPLITS.items()
        ]
    return claims


_SPLITS: Mapping[Split, str] = {"train": "tuned on", "heldout": "held out"}


def _share_of(kinds: Collection[str]) -> Measure:
    return lambda answer: None if answer.says is None else float(answer.says in kinds)
