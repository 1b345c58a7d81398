"""The ledger of a training as a stage: replayed, written, resumed, refused."""

from __future__ import annotations

from typing import Any

import pytest

from dynolab.objectives import DPOConfig
from dynolab.results.ledger import FunctionalRow, read_table
from dynolab.training.config import LoraConfig, OptimizerConfig, TrainConfig
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.work import StageResult
from tasks.training import PREFERENCE
from tests.flows.analysed import PLAIN, Analysed

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)


def trained(analysed: Analysed, **changes: Any) -> tuple[TrainConfig, StageResult]:
    """A preference training with a warm-up on the small store."""
    settings = {"objective": DPOConfig(), "optimizer": SGD, "engine": PLAIN, "steps": 6}
    more = {"batch_size": 4, "warmup_steps": 2, "probe_every": 3, **changes}
    config = TrainConfig(**{**settings, **more})
    return config, analysed.run(PREFERENCE, config, data=analysed.data, model=analysed.sft)


def ledger(analysed: Analysed, training: TrainConfig, result: StageResult, **changes: Any):  # type: ignore[no-untyped-def]
    config = LedgerJob(training=training, pairs=2, answers=3, **changes)
    return analysed.run(LEDGER, config, data=analysed.data, model=analysed.sft, trained=result)


@pytest.fixture(scope="module")
def dpo(analysed: Analysed) -> tuple[TrainConfig, StageResult]:
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


def test_segments_change_nothing(analysed: Analysed, dpo) -> None:  # type: ignore[no-untyped-def]
    training, result = dpo
    whole = ledger(analysed, training, result)
    size = sum(
        f.stat().st_size for f in analysed.folder(analysed.sft, "model").glob("*.safetensors")
    )
    parts = ledger(analysed, training, result, disk_bytes=5 * size * 2 + 1)
    assert parts.key == whole.key
