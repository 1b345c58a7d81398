"""What is shown where recorded steps are lost, do not fit into memory, or never were."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("dash")

from dynolab.explorer import step as step_module
from dynolab.explorer.page import pairs
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.training.step_record import RecordCache
from tests.explorer.small_study import STEPS, alone, ledger_of, small_study, text_of, view

LOST = "no longer in this machine's cache"
NONE = "preference.record_steps = []: records no step"
ROOM = "copies of the"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Its recorded steps are in a cache."""
    study = small_study(tmp_path_factory.mktemp("study"))
    for training in study.trainings.values():
        for step in STEPS:
            training.records.take(training.folder / "forces" / f"step-{step:08d}")
    return study


@pytest.fixture(params=[LOST, NONE, ROOM])
def incomplete(
    study: Study, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Study, str]:
    """The study with a ledger, of which no step can be computed, and the words that say so."""
    changes = {"ledger": ledger_of(study, tmp_path)}
    if request.param == LOST:
        changes["records"] = RecordCache(tmp_path / "empty")
    elif request.param == ROOM:
        monkeypatch.setattr(step_module, "free_bytes", lambda device: 10)
    else:
        folder = study.training("preference").folder
        shutil.copytree(folder, tmp_path / "none", ignore=shutil.ignore_patterns("forces"))
        changes["folder"] = tmp_path / "none"
    return alone(study, **changes), request.param


def test_an_answer_has_its_stored_account(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    text = view(study, State(pair=next(iter(study.pairs)), place=0))
    assert words in text
    assert "−2.50 nats over the whole training: +2.50 through chosen answers, −5.00" in text
    assert "Who pulled it down" in text and "Who held it up" in text
    assert "token by token" not in text


def test_what_has_no_account_says_why(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    for state in (State(metric="gradient"), State(prompt="w1", response=" w2")):
        text = view(study, state)
        assert words in text and "Who pulled it down" not in text


def test_pairs_and_what_if_show_the_ledgers_sums(incomplete: tuple[Study, str]) -> None:
    study, words = incomplete
    first = next(iter(study.pairs))
    text = view(study, State(view="pairs", pair=first))
    assert words in text and "−2.00 " in text  # 1 − 3: of the list, by the mean
    answer = study.training("preference").answers["chosen"][0].row.pair_id
    assert "training, mean of 2 −2.00 +1.00 −3.00" in text
    assert f"{answer}, chosen y⁺ −3.50 +0.500 −4.00" in text
    assert "Whom it harms" not in text
    text = view(study, State(view="what-if", without=(first,)))
    assert words in text and "Over the whole training" in text and "preference_filter" in text
    assert "would fall" not in text


def test_a_pair_s_sums_do_not_wait_for_recorded_steps(study: Study, tmp_path: Path) -> None:
    own = alone(study, ledger=ledger_of(study, tmp_path))
    state = State(view="pairs", pair=next(iter(study.pairs)))
    text = text_of(pairs.shown(own, state, computed=False))
    assert "Over the whole training" in text and "Whom it harms" not in text


def test_steps_that_are_left_are_computed(study: Study, tmp_path: Path) -> None:
    own = study.training("preference")
    shutil.copytree(own.records.folder, tmp_path / "cache")
    records = RecordCache(tmp_path / "cache")
    shutil.rmtree(records._place(own.folder / "forces" / f"step-{STEPS[0]:08d}"))
    text = view(alone(study, records=records), State())
    assert f"step = [{STEPS[0]}]: its tensors are" in text
    assert f"at recorded step {STEPS[1]}" in text and "Colour: push by" in text


def test_what_was_computed_before_a_loss_stays(study: Study, tmp_path: Path) -> None:
    first = study.training("preference").record(STEPS[0]).examples[0].id
    states = [State(view="pairs", pair=first), State(view="what-if", without=(first,))]
    before = alone(study)
    texts = [view(before, state) for state in states]
    own = before.training("preference")
    lost = replace(own, records=RecordCache(tmp_path), _steps={})
    after = replace(before, trainings={"preference": lost})
    for text, state in zip(texts, states, strict=True):
        assert "recorded step" in text
        again = view(after, state)
        assert LOST in again and "recorded step" in again
    shutil.rmtree(own.kept)
