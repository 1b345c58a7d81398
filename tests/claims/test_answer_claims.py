from __future__ import annotations

import pytest

from dynolab.claims.study import assess_answers
from tests.report.synthetic import answers, world_answers

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
