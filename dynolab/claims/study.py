"""Judges what a study shows: phenomena of Ren & Sutherland (arXiv 2407.10490, §4), and answers.

Figures are means over training prompts with 95% intervals over pairs; those of greedy answers,
before and after each training, are means over questions, paired by question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dynolab.claims.claim import (
    Claim,
    falls,
    falls_more,
    gains_more,
    gap_changes,
    judge,
    rises,
    rises_then_falls,
)
from dynolab.claims.verdict import Claimed, Measurement, Sign, Verdict, explains, judged, on_side
from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, WRONG
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import LearningPaths
from dynolab.results.study import ARGMAX, Answer, ForceRow
from dynolab.statistics import Interval, column, mean_interval, unexplained_share

CLAIMS: tuple[Claim, ...] = (
    Claim("sft", "chosen", "The chosen answer rises", rises("chosen")),
    Claim(
        "sft",
        "rejected",
        "The rejected answer rises, then falls back",
        rises_then_falls("rejected"),
    ),
    Claim(
        "sft",
        "irr_test",
        "Answers to untrained questions (irr_test) rise, then fall back",
        rises_then_falls("irr_test"),
    ),
    Claim(
        "sft",
        "hallucination",
        "Answers to other training questions gain more than those to untrained ones",
        gains_more("irr_train", "irr_test"),
    ),
    Claim("sft", "random_permute", "Shuffled words (random_permute) fall", falls("random_permute")),
    Claim("sft", "gap", "The gap from the chosen answer up to y* shrinks", gap_changes(-1)),
    Claim(
        "dpo",
        "rejected",
        "The rejected answer falls steeply: more than the chosen one",
        falls_more("rejected", "chosen"),
    ),
    Claim("dpo", "chosen", "The chosen answer falls, though it is preferred", falls("chosen")),
    Claim("dpo", "argmax", "y*, what the model already prefers, rises", rises(ARGMAX)),
    Claim(
        "dpo",
        "gap",
        "The gap from the chosen answer up to y* grows: squeezing",
        gap_changes(1),
    ),
)

_FAIL_BY_DESIGN = frozenset({"sft/rejected"})
"""Claims that fail by design when training on both answers of a pair."""


def claims_of(objective: str) -> tuple[Claim, ...]:
    """The claims to judge for a training, by its objective.

    Claims on DPO apply to every pair loss, though the papers make them for DPO only; claims on SFT
    also apply to SFT on both answers, except for the fall of the rejected ones.
    """
    training = "dpo" if objective in PAIR_OBJECTIVES else objective
    claims = [claim for claim in CLAIMS if claim.training == training]
    if objective == "sft_extended":
        claims = [claim for claim in CLAIMS if claim.training == "sft"]
        claims = [claim for claim in claims if claim.id not in _FAIL_BY_DESIGN]
    return tuple(replace(claim, training=objective) for claim in claims)


def assess(
    trainings: Mapping[str, LearningPaths | None], forces: Sequence[ForceRow] = ()
) -> tuple[Verdict, ...]:
    """Judges all claims about a study's trainings, on training prompts.

    **Arguments:** `trainings`: paths by the objective's name, in the study's order; None for a
    training that was not probed.
    """
    probed = {name: paths for name, paths in trainings.items() if paths is not None}
    verdicts = []
    for name in trainings:
        verdicts += [judge(claim, [probed]) for claim in claims_of(name)]
    for name in trainings:
        missed = unexplained([row for row in forces if row.stage == name])
        claim = "The first-order forces of a step explain the change it made"
        verdicts.append(explains(f"{name}/forces", name, claim, missed))
    return tuple(verdicts)


def unexplained(rows: Sequence[ForceRow]) -> Interval:
    """`1 − R² = Σ(measured − predicted)²/Σ measured²`, with a jackknife interval over pairs."""
    pairs = np.array([row.pair_id for row in rows])
    return unexplained_share(column(rows, "measured"), column(rows, "predicted"), pairs)


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
        claims = _answer_claims(objective, answers, before, model)
        for verdict in judged(objective, objective, claims):
            if all(figure.n for figure in verdict.measured):
                verdicts.append(verdict)
        before = model
    return tuple(verdicts)


def _answer_claims(
    objective: str, answers: Sequence[Answer], before: str, after: str
) -> list[Claimed]:
    def change(name: str, sign: Sign, split: Split, measure: Measure) -> Measurement:
        """The change of a measure over the questions that both models answered."""
        values: dict[str, dict[str, float | None]] = {before: {}, after: {}}
        for answer in answers:
            if answer.split == split and answer.model in values:
                values[answer.model][answer.pair_id] = measure(answer)
        changes = []
        for pair, old in values[before].items():
            new = values[after].get(pair)
            if old is not None and new is not None:
                changes.append(new - old)
        return on_side(sign, f"Δ {name}, {_SPLITS[split]}", mean_interval(changes), unit="")

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
        for split, questions in _SPLITS.items():
            claim = f"Right answers to questions {questions} are lost"
            figure = change("right", -1, split, _share_of(RIGHT))
            claims.append((f"right/{split}", claim, "Δ < 0", figure))
    return claims


_SPLITS: Mapping[Split, str] = {"train": "tuned on", "heldout": "held out"}


def _share_of(kinds: Collection[str]) -> Measure:
    return lambda answer: None if answer.says is None else float(answer.says in kinds)
