"""Accounts outlive their process, and take no more than their share of a training's time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from dynolab.errors import ConfigError
from dynolab.integrations.accounts import ACCOUNTS
from dynolab.integrations.forces import ForceCallback
from dynolab.integrations.pace import Pace
from dynolab.results.ledger_reader import read_ledger
from tests.integrations.test_callback import STEPS, dpo
from tests.integrations.test_forces import sft


def steps_of(folder: Path) -> list[int]:
    return read_ledger(folder, folder).steps


class Killed(TrainerCallback):
    """Ends the process' training after a step, with half a line of the account that was begun."""

    def __init__(self, step: int, folder: Path) -> None:
        self.step, self.folder = step, folder

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            with (self.folder / ACCOUNTS).open("a") as file:
                file.write('{"step": 9, "tab')
            raise KeyboardInterrupt


def test_a_killed_training_has_its_accounts_and_goes_on_in_them(tmp_path: Path) -> None:
    trainer = sft(tmp_path, save_steps=2, save_strategy="steps")
    trainer.add_callback(ForceCallback(trainer, every=1))
    trainer.add_callback(Killed(3, tmp_path / "ledger"))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert steps_of(tmp_path / "ledger") == [0, 1, 2]
    assert (tmp_path / "ledger" / "ledger.html").exists()

    again = sft(tmp_path, save_steps=2, save_strategy="steps")
    again.add_callback(ForceCallback(again, every=1))
    again.train(resume_from_checkpoint=True)
    assert steps_of(tmp_path / "ledger") == [*range(STEPS)]
    lines = (tmp_path / "ledger" / ACCOUNTS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*range(STEPS)]


def test_a_second_training_has_a_folder_of_its_own(tmp_path: Path) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(forces := ForceCallback(trainer, every=1))
    trainer.train()
    first = (tmp_path / "ledger" / ACCOUNTS).read_bytes()
    trainer.train()
    assert forces.folder == tmp_path / "ledger-2"
    assert steps_of(forces.folder) == [*range(STEPS)]
    assert (tmp_path / "ledger" / ACCOUNTS).read_bytes() == first


def test_work_is_spaced_so_that_it_keeps_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 s, the first one of 9 s, works of 3 s, and at the end twice as long."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    pace = Pace(0.1, None)
    pace.begin(7)
    works, due = 0.0, []
    for step in range(7, 300):
        took = 3.0 if step < 200 else 6.0
        if now := pace.due(step):
            due.append(step)
            works += took
            with pace.working():
                clock[0] += took
        clock[0] += 9.0 if step == 7 else 1.0
        if now:
            pace.plan(step, took)
            if 7 < step < 200:  # longer works are not foreseen
                assert works <= 0.1 * (clock[0] - works) + 1e-9
    assert due[:3] == [7, 59, 89]
    assert 0.08 < works / (300 - 7) <= 0.12


def test_a_share_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="share = 0"):
        Pace(0, None)
