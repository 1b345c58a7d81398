"""The view of answers as components: of a typed answer, two trainings, and too little memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash")

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.explorer import room
from dynolab.explorer.page import answers
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.forces import PolicyFunction
from dynolab.training.record_cache import RecordCache
from models.language import load_language_model, load_tokenizer
from tests.training.small import make_files, run_small, settings

STEPS = [0, 3]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Two trainings with recorded steps and without a ledger."""
    folder = tmp_path_factory.mktemp("study")
    make_files(folder)
    trainings = {}
    for name, beta in (("preference", 0.1), ("sft", 0.5)):
        config = settings(
            objective={"name": "dpo", "beta": beta}, record_steps=STEPS, checkpoint_every=0, steps=4
        )
        output = run_small(folder, folder / name, config).output
        trainings[name] = Training(
            name=name,
            result=f"preference/{name}",
            objective=config.objective,
            folder=output,
            watched=tuple(read_rows(folder / "probes.jsonl", ProbeRow)),
            load=partial(_loaded, output / "model"),
            score=_unused,
            ledger=None,
            records=RecordCache(folder / "cache"),
            kept=folder / "kept",
        )
    pairs = {row.id: row for row in read_rows(folder / "train.jsonl", Example)}
    return Study("name", "report/0", trainings, pairs, "data/0")


def _loaded(folder: Path) -> tuple[PolicyFunction, Encoder]:
    tokenizer = load_tokenizer(str(folder))
    policy = PolicyFunction(load_language_model(str(folder), tokenizer=tokenizer))
    return policy, Encoder(tokenizer, 48, "drop")


def _unused(*_: object) -> Any:
    raise AssertionError("every pair is in a batch")


def text_of(part: Any) -> str:
    """All that a view says."""
    if isinstance(part, (list, tuple)):
        return " ".join(map(text_of, part))
    if hasattr(part, "to_plotly_json"):
        return text_of(part.to_plotly_json()["props"].get("children", ""))
    return "" if part is None else str(part)


def view(study: Study, state: State) -> str:
    shown = answers.shown(study, state, dark=False, program="dynolab")
    return text_of(shown)


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


def test_what_does_not_fit_into_memory_is_told_in_the_page(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = study.training("preference")
    fresh = replace(own, kept=own.kept / "none", _steps={})
    alone = replace(study, trainings={"preference": fresh})
    monkeypatch.setattr(room, "free_bytes", lambda device: 10)
    text = view(alone, State())
    assert "copies of the" in text and "Who pulled it down" not in text
