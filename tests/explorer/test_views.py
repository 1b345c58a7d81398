"""The view of answers as components: of a typed answer, and of two trainings."""

from __future__ import annotations

import pytest

pytest.importorskip("dash")

from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from tests.explorer.small_study import STEPS, small_study, view


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return small_study(tmp_path_factory.mktemp("study"))


def test_a_typed_answer_has_its_pushers_and_maps(study: Study) -> None:
    state = State(prompt="w1 w2", response=" w3 <b>w4</b> w5")
    text = view(study, state)
    assert "An answer of your own" in text and "at recorded steps 0, 3" in text
    assert "Who pulled it down" in text or "Who held it up" in text
    training = study.training("preference")
    pair = training.record(STEPS[0]).examples[0].id
    chosen = {"pair": pair, "place": 1, "step": STEPS[0]}
    text = view(study, state.model_copy(update=chosen))
    assert f"{pair} on typed, token by token, at step {STEPS[0]}" in text
    assert "Who pulled down “" in text


def test_a_typed_answer_moves_by_what_its_pairs_did(study: Study) -> None:
    """A watched answer that is typed again has the lines that it has as a watched one."""
    training = study.training("preference")
    watched = training.answers["chosen"][0].row
    typed = State(prompt=watched.prompt, response=watched.response)
    message = "nats at recorded steps 0, 3:"
    texts = [view(study, typed), view(study, State(answer=watched.pair_id))]
    sums = [text[text.index(message) - 7 : text.index("is left over")] for text in texts]
    assert sums[0] == sums[1]


def test_two_trainings_are_side_by_side(study: Study) -> None:
    text = view(study, State(beside="sft"))
    assert "Who pulled it down, in one or the other" in text
    assert text.count("log π went from") == 3  # above, and under each training
    assert text.count("at recorded steps 0, 3") == 2
    assert "in one or the other" not in view(study, State(beside="preference"))
