"""Claims on answers: what is there appears, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.claims.claim import early
from dynolab.claims.study import assess_answers
from dynolab.probes.paths import LearningPaths
from tests.report.synthetic import answers, world_answers


def test_early_is_the_last_probe_of_the_first_quarter() -> None:
    steps = np.arange(0, 101, 20)
    many = LearningPaths(steps, ("a",), {"chosen": steps[:, None] * 1.0})
    assert early(many, "chosen").tolist() == [20.0]
    few = LearningPaths(np.array([0, 50, 100]), ("a",), {"chosen": np.array([[0.0], [5.0], [9.0]])})
    assert early(few, "chosen").tolist() == [5.0]


TRAININGS = {"sft": "sft", "preference": "dpo"}
LOST = ("dpo/right/train", "dpo/right/heldout")


def test_what_training_does_to_answers_is_judged_by_question() -> None:
    found = {verdict.id: verdict for verdict in assess_answers(world_answers(), TRAININGS)}
    assert set(found) == {"sft/phrases", "sft/wrong", "dpo/phrases", "dpo/wrong", *LOST}
    means = {name: [figure.mean for figure in found[name].measured] for name in found}
    assert means["sft/phrases"] == means["dpo/phrases"] == [pytest.approx(0.5)]
    assert means["sft/wrong"] == [pytest.approx(-0.5)]
    assert means["dpo/wrong"] == [pytest.approx(0.25)]
    assert [means[name] for name in LOST] == [[pytest.approx(-0.25)]] * 2
    assert all(figure.n == 20 for verdict in found.values() for figure in verdict.measured)
    outcomes = {name: verdict.outcome for name, verdict in found.items()}
    assert outcomes == dict.fromkeys(found, "holds") | {"sft/wrong": "fails"}


def test_answers_without_facts_or_phrases_make_no_claims() -> None:
    assert assess_answers(answers(), TRAININGS) == ()
    assert assess_answers((), TRAININGS) == ()


def test_only_questions_that_both_models_answered_count() -> None:
    some = [a for a in world_answers() if a.model != "preference" or a.pair_id.endswith("2")]
    lost = [v.measured[0] for v in assess_answers(some, TRAININGS) if v.id in LOST]
    assert [(figure.n, figure.mean) for figure in lost] == [(2, -0.5)] * 2
