"""The ledger of a training as a stage: replayed, written, resumed, refused."""

from __future__ import annotations

from typing import Any

import pytest

from dynolab.errors import ConfigError
from dynolab.forces.ledger.account import Ledger, StepAccount
from dynolab.objectives import DPOConfig
from dynolab.results.ledger import TABLES, FunctionalRow, read_table
from dynolab.results.study import ARGMAX
from dynolab.training.config import LoraConfig, OptimizerConfig, TrainConfig
from dynolab.training.step_record import StepRecord
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.stage import run_stage
from tasks.runtime.work import StageResult
from tasks.shared.replay import COPIES
from tasks.training import PREFERENCE
from tests.flows.analysed import PLAIN, Analysed

Trained = tuple[TrainConfig, StageResult]
SGD = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)


def trained(analysed: Analysed, **changes: Any) -> Trained:
    """A preference training with a warm-up on the small store."""
    settings = {"objective": DPOConfig(), "optimizer": SGD, "engine": PLAIN, "steps": 6}
    more = {"batch_size": 4, "warmup_steps": 2, "probe_every": 3, **changes}
    config = TrainConfig(**{**settings, **more})
    return config, analysed.run(PREFERENCE, config, data=analysed.data, model=analysed.sft)


def ledger(
    analysed: Analysed,
    training: TrainConfig,
    result: StageResult,
    *,
    fresh: bool = False,
    **changes: Any,
) -> StageResult:
    """The account of a training; `fresh`: kept again if there is one."""
    config = LedgerJob(training=training, pairs=2, answers=3, **changes)
    inputs = {"data": analysed.data, "model": analysed.sft, "trained": result}
    return run_stage(LEDGER, config, inputs, analysed.platform, fresh=fresh)


@pytest.fixture(scope="module")
def dpo(analysed: Analysed) -> Trained:
    return trained(analysed)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": OptimizerConfig(name="adamw", epsilon=1e-6)},
        {"lora": LoraConfig(rank=2)},
    ],
    ids=["sgd", "adamw", "lora"],
)
def test_a_ledger_closes(analysed: Analysed, changes: dict[str, Any]) -> None:
    training, result = trained(analysed, **changes)
    account = ledger(analysed, training, result)
    assert account.metrics["ledger/steps"] == 6
    assert account.metrics["ledger/closure"] < 1e-5
    folder = analysed.folder(account)
    functionals = analysed.rows(account, "functionals.jsonl", FunctionalRow)
    lines = read_table(folder, "lines")
    assert set(lines["functional"]) == {row.name for row in functionals}
    assert set(lines["step"]) == set(range(6))
    responses = read_table(folder, "responses")
    assert set(responses["side"]) == {"chosen", "rejected"}


def tables(analysed: Analysed, account: StageResult) -> dict[str, Any]:
    return {name: read_table(analysed.folder(account), name) for name in TABLES}


def two_steps_of_records(analysed: Analysed) -> int:
    """Bytes of disk that hold the records of two steps and no third."""
    model = analysed.folder(analysed.sft, "model")
    return 2 * COPIES * sum(file.stat().st_size for file in model.glob("*.safetensors"))


def test_segments_change_nothing(analysed: Analysed, dpo: Trained) -> None:
    whole = tables(analysed, ledger(analysed, *dpo))
    small = two_steps_of_records(analysed)
    assert tables(analysed, ledger(analysed, *dpo, fresh=True, disk_bytes=small)) == whole


def test_a_ledger_that_was_ended_goes_on(
    analysed: Analysed, dpo: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables(analysed, ledger(analysed, *dpo))
    small = two_steps_of_records(analysed)
    entered: list[int] = []
    enter = Ledger.enter

    def ended(self: Ledger, record: StepRecord) -> StepAccount:
        entered.append(record.facts.step)
        if len(entered) == 4:
            raise KeyboardInterrupt
        return enter(self, record)

    monkeypatch.setattr(Ledger, "enter", ended)
    with pytest.raises(KeyboardInterrupt):
        ledger(analysed, *dpo, fresh=True, disk_bytes=small)
    again = ledger(analysed, *dpo, fresh=True, disk_bytes=small)
    assert entered == [5, 4, 3, 2, 3, 2, 1, 0]
    assert tables(analysed, again) == whole


def test_a_replay_that_differs_is_refused_at_its_first_step(
    analysed: Analysed, dpo: Trained
) -> None:
    training, result = dpo
    other = training.model_copy(update={"warmup_steps": 3})
    with pytest.raises(ConfigError, match=r"replay of step = 1: gave .* where the training had"):
        ledger(analysed, other, result)


def test_a_training_without_probes_has_accounts_of_kinds_alone(analysed: Analysed) -> None:
    training, result = trained(analysed, probe_every=0, steps=2)
    account = ledger(analysed, training, result)
    rows = analysed.rows(account, "functionals.jsonl", FunctionalRow)
    assert {(row.split, row.kind) for row in rows} >= {("train", "chosen"), ("train", ARGMAX)}
    assert all(len(row.pairs) == 2 for row in rows)
