"""The address of the page, and what is taken from it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

pytest.importorskip("dash")

from dynolab.data.rows import Example, ProbeRow
from dynolab.explorer.page import take
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.objectives import DPOConfig, IPOConfig
from dynolab.training.record_cache import RecordCache
from flows.mitigation import MitigationParameters
from flows.parameters import validated
from flows.study import StudyParameters

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
        kept=folder,
    )


def test_an_address_is_read_as_it_was_written() -> None:
    state = State(view="what-if", answer=ODD, step=0, place=3, without=("x", ODD), dose=0.3)
    assert State.of(state.link()) == state
    typed = State(prompt=ODD, response=ODD, beside="sft")
    assert State.of(typed.link()) == typed
    assert State.of(typed.link(answer="x")) == State(answer="x", beside="sft")
    assert State.of("") == State.of(None) == State() and State().link() == "?"
    assert State.of(state.toggled("x")).without == (ODD,)
    assert State.of(state.toggled("new")).without == ("x", ODD, "new")


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


def test_settings_and_command_are_those_of_a_study_and_a_mitigation(tmp_path: Path) -> None:
    own, state = training(tmp_path), State(without=("train-1", ODD), dose=0.3)
    study, arms = take.settings(own, state)
    read = validated(StudyParameters, yaml.safe_load(study))
    assert read.preference_filter is not None
    assert read.preference_filter.pairs == state.without
    assert read.preference.objective == DPOConfig(beta=0.2, negative_dose=0.3)
    arm = validated(MitigationParameters, yaml.safe_load(arms)).arms["without"]
    assert arm.filter is not None and arm.filter.pairs == state.without
    assert arm.objective == DPOConfig(beta=0.2, negative_dose=0.3)
    words = shlex.split(take.command(own, state, "dynolab"))
    assert words[:3] == ["dynolab", "study", "FILE"]
    assert yaml.safe_load(words[4].partition("=")[2]) == {"pairs": list(state.without)}
    assert words[6] == "preference.objective.negative_dose=0.3"
    assert take.settings(own, State()) == ("", "")


def test_the_filtered_file_holds_all_other_pairs(tmp_path: Path) -> None:
    pairs = {name: Example(id=name, prompt="p", chosen="c", rejected="r") for name in "abc"}
    study = Study("name", "report/0", {"preference": training(tmp_path)}, pairs, "data/0")
    name, text = take.filtered(study, State(without=("b",)))
    assert name == "pairs-without-1.jsonl"
    rows = [Example.model_validate_json(line) for line in text.splitlines()]
    assert rows == [pairs["a"], pairs["c"]]


def test_python_to_copy_quotes_every_text(tmp_path: Path) -> None:
    row = ProbeRow(
        pair_id=ODD, split="train", kind="chosen", prompt=ODD, response="'", made_by="the data"
    )
    text = take.map_python(training(tmp_path), row, 3, ODD)
    compile(text, "copied", "exec")
    assert text.count(repr(ODD)) >= 3
