"""What is opened: studies, steps and answers; the page's address, and what is taken from it."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("dash")

from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from dynolab.explorer import step as step_module
from dynolab.explorer.page import export
from dynolab.explorer.page.search import TYPED, typed_answer
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.objectives import DPOConfig, IPOConfig
from dynolab.objectives.pairs import DesignedDoseConfig
from dynolab.training.step_record import RecordCache
from flows.explore import start
from flows.mitigation import MitigationParameters
from flows.parameters.parse import load_parameters
from flows.parameters.validation import validated
from flows.study.parameters import StudyParameters
from tests.forces.small_models import neox, recorded

CPU = torch.device("cpu")


def study(folder: Path, result: str, trained: str, data: str = "data/0") -> Study:
    sft, last = training(folder), training(folder)
    trainings = {
        "sft": replace(sft, name="sft", result="sft/0"),
        "preference": replace(last, result=trained),
    }
    return Study("name", result, trainings, {}, data)


def test_a_second_study_adds_the_trainings_that_are_its_own(tmp_path: Path) -> None:
    first = study(tmp_path, "report/1", "preference/1")
    both = first.beside(study(tmp_path, "report/2", "preference/2"))
    assert list(both.trainings) == ["sft", "preference", "preference of report/2"]
    assert both.training("preference of report/2").label == "DPO of report/2"
    assert both.training("none").result == "preference/1" and both.pairs == first.pairs
    assert list(first.beside(study(tmp_path, "report/3", "preference/1")).trainings) == [
        "sft",
        "preference",
    ]
    with pytest.raises(ConfigError, match=r"'report/4': was made of other rows \(data/4\)"):
        first.beside(study(tmp_path, "report/4", "preference/4", data="data/4"))


@pytest.mark.parametrize("cached", [False, True])
def test_a_step_that_exceeds_the_free_memory_is_refused_before_it_is_read(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(neox(), count=3)
    record.save(tmp_path / "step")
    if cached:
        RecordCache(tmp_path / "cache").take(tmp_path / "step")
        shutil.rmtree(tmp_path / "cache")
    step_module.check_room(tmp_path / "step", CPU)
    weights = 4 * sum(tensor.numel() for tensor in record.before.values())
    # Of the six answers of three pairs, one functional, and AdamW's two states and the later one.
    needed = (3 + 6 + 13 + 3) * weights
    monkeypatch.setattr(step_module, "free_bytes", lambda device: int(1.05 * needed))
    step_module.check_room(tmp_path / "step", CPU)
    monkeypatch.setattr(step_module, "free_bytes", lambda device: int(0.95 * needed))
    with pytest.raises(ConfigError, match=r"step = \d: takes about .* GB here: 23 copies of the"):
        step_module.check_room(tmp_path / "step", CPU)


def test_a_typed_answer_is_what_the_address_holds() -> None:
    assert typed_answer(State(prompt="only a prompt")) is None
    row = typed_answer(State.of(State(prompt="p", response="<b>r</b>").link()))
    assert row is not None
    assert (row.prompt, row.response, row.kind) == ("p", "<b>r</b>", TYPED)


def test_without_the_pages_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dash", None)
    with pytest.raises(ConfigError, match=r"'dash': is not installed; in .* install '\.\[expl"):
        start(["report"], 0, print)


ODD = 'a "b" & c=1, <i>ü</i>\n'


def training(folder: Path) -> Training:
    def unused(*_: object) -> None:
        raise AssertionError("nothing is computed")

    return Training(
        name="preference",
        result="preference/0123456789ab",
        objective=DPOConfig(beta=0.2),
        folder=folder,
        watched=(),
        load=unused,  # type: ignore[arg-type]
        score=unused,  # type: ignore[arg-type]
        ledger=None,
        records=RecordCache(folder),
        cache=folder,
    )


def test_an_address_is_read_as_it_was_written() -> None:
    state = State(
        view="what-if", answer=ODD, step=0, place=3, without=("x", ODD), dose=0.3, step_beside=3
    )
    assert State.of(state.link()) == state
    typed = State(prompt=ODD, response=ODD, beside="sft")
    assert State.of(typed.link()) == typed
    assert State.of(typed.link(answer="x")) == State(answer="x", beside="sft")
    assert State.of("") == State.of(None) == State() and State().link() == "?"
    assert State.of(state.toggled("x")).without == (ODD,)
    assert State.of(state.toggled("new")).without == ("x", ODD, "new")
    # A chosen pair stays while answers are chosen.
    assert State.of(State(answer="r1", pair="r2", step=3).list_link()).pair == "r2"
    assert State.of(State(view="pairs", pair="r2").list_link()).pair == ""


@pytest.mark.parametrize(
    "search", ["?step=x", "?view=secrets", "?dose=-1", "?dose=nan", "?beta=0", "?metric=<script>"]
)
def test_an_address_that_cannot_be_names_the_beginning(search: str) -> None:
    assert State.of(search) == State()


def test_another_objective_has_its_defaults_and_the_own_one_its_settings(tmp_path: Path) -> None:
    own = training(tmp_path)
    assert own.asked_for("optimizer").objective is None
    assert own.asked_for("gradient", "dpo").objective is None  # it is what was trained
    assert own.asked_for("gradient", "dpo", 1.0).objective == DPOConfig(beta=1.0)
    assert own.asked_for("gradient", beta=1.0).objective == DPOConfig(beta=1.0)
    assert own.asked_for("gradient", beta=0.2).objective is None
    assert own.asked_for("gradient", "ipo", 0.3).objective == IPOConfig(beta=0.3)


CHANGES = [  # trained; asked; what it then trains under
    (DPOConfig(), State(without=("train-1", ODD)), DPOConfig()),
    (DPOConfig(beta=0.2), State(without=("train-1", ODD), dose=0.3), {"negative_dose": 0.3}),
    (DPOConfig(negative_dose=0.5), State(dose=0.3), {"negative_dose": 0.15}),
    (DPOConfig(beta=0.2, label_smoothing=0.1), State(beta=1.0), {"beta": 1.0}),
    (DPOConfig(beta=0.2), State(objective="ipo"), IPOConfig()),
    (IPOConfig(beta=0.3), State(without=("train-1",), dose=0.3), IPOConfig(beta=0.3)),
    (IPOConfig(beta=0.3), State(objective="dpo", dose=0.3), DPOConfig(negative_dose=0.3)),
    (
        DPOConfig(designed_dose=DesignedDoseConfig()),
        State(without=("train-1",), dose=0.3),
        DPOConfig(designed_dose=DesignedDoseConfig()),
    ),
]


@pytest.mark.parametrize(("objective", "state", "then"), CHANGES)
def test_settings_and_arms_are_the_study_but_for_the_change(
    objective: Any, state: State, then: Any, tmp_path: Path
) -> None:
    own = replace(training(tmp_path), objective=objective)
    if isinstance(then, dict):
        then = objective.model_copy(update=then)
    filtered = {"pairs": list(state.without)} if state.without else None
    shown = texts_of(export.taken(study_of(own), own, state))

    settings, arms = (yaml.safe_load(shown[place]) for place in (0, 2))
    given_settings = {"preference": {"objective": given(objective)}}
    study = validated(StudyParameters, given_settings | settings)
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(given_settings))
    changes = shlex.split(shown[1])[4::2]
    assert load_parameters(StudyParameters, file, changes) == study.model_copy(
        update={"name": "what-if"}
    )
    assert study.preference.objective == then
    compared = validated(MitigationParameters, arms).arms
    (first, was), (_, changed) = compared.items()
    assert first == "as-it-was" and was.objective == objective
    assert was.filter is None and changed.objective == then

    for found in (study.preference_filter, changed.filter):
        pairs = None if found is None else list(found.pairs)
        assert pairs == (filtered and filtered["pairs"])


def test_nothing_is_taken_without_a_change_and_of_sft_only_the_pairs(tmp_path: Path) -> None:
    own = training(tmp_path)
    study = study_of(own)
    assert export.taken(study, own, State()) == []
    assert export.taken(study, replace(own, objective=IPOConfig()), State(dose=0.3)) == []
    sft = replace(own, name="sft of report/2", study="report/2")
    assert texts_of(export.taken(study, sft, State(without=("a",)))) == []
    assert len(texts_of(export.taken(study, own, State(without=("a",))))) == 3


def given(objective: Any) -> dict[str, Any]:
    """As a study file sets it."""
    return {"name": objective.name, **objective.model_dump(mode="json", exclude_defaults=True)}


def study_of(training: Training) -> Study:
    return Study("name", "report/0", {"preference": training}, {}, "data/0")


def texts_of(parts: list[Any]) -> list[str]:
    """What can be copied."""
    return [part.children[1].children for part in parts if type(part).__name__ == "Div"]


def test_the_filtered_file_holds_all_other_pairs(tmp_path: Path) -> None:
    pairs = {name: Example(id=name, prompt="p", chosen="c", rejected="r") for name in "abc"}
    study = replace(study_of(training(tmp_path)), pairs=pairs)
    name, text = export.filtered(study, State(without=("b",)))
    assert name == "pairs-without-1.jsonl"
    rows = [Example.model_validate_json(line) for line in text.splitlines()]
    assert rows == [pairs["a"], pairs["c"]]
