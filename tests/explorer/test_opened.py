"""What is opened: a second study beside the first, a model that is too large, a typed answer."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("dash")

from dynolab.errors import ConfigError
from dynolab.explorer import step as step_module
from dynolab.explorer.page.search import TYPED, typed_answer
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.training.step_record import RecordCache
from flows.explore import start
from tests.explorer.test_state import training
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
