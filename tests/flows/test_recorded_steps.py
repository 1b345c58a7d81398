"""Recorded steps as stages read them: from the cache, from a replay, and when a replay differs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig, SFTConfig
from dynolab.results.forces import Validity
from dynolab.results.study import ForceRow
from dynolab.training import loop
from dynolab.training.config import (
    EngineConfig,
    GroupTrainConfig,
    LoraConfig,
    OptimizerConfig,
    TrainConfig,
)
from dynolab.training.step_record import TENSORS
from flows.forces import FLOW
from tasks.data import PROMPTS
from tasks.force_map import ANALYSIS, AnalysisJob
from tasks.forces import FORCES, ForcesConfig
from tasks.kernel import KERNEL, KernelJob
from tasks.runtime.stage import Stage, run_stage
from tasks.runtime.work import StageResult
from tasks.shared.replay import segment_steps
from tasks.training import GROUP, PREFERENCE, RECORDS
from tests.flows.analysed import PLAIN, WORLD, Analysed
from tests.flows.in_process import short

DPO = TrainConfig(
    objective=DPOConfig(),
    optimizer=OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9),
    engine=PLAIN,
    steps=4,
    batch_size=4,
    warmup_steps=2,
    record_steps=(1, 3),
)
PAIRS = {"observed_pairs": 1, "updating_pairs": 2}
STEP_BYTES = 1e6


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    return Analysed(tmp_path_factory.mktemp("recorded") / "home")


@pytest.fixture(scope="module")
def dpo(lab: Analysed) -> StageResult:
    return lab.run(PREFERENCE, DPO, data=lab.data, model=lab.sft)


def lose_cache(lab: Analysed) -> None:
    shutil.rmtree(lab.platform.settings.cache / RECORDS)


def cached(lab: Analysed) -> dict[str, bytes]:
    """All files of the cache."""
    folder = lab.platform.settings.cache / RECORDS
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def again(lab: Analysed, stage: Stage[Any], config: Any, **inputs: StageResult) -> StageResult:
    return run_stage(stage, config, inputs, lab.platform, fresh=True)


def contents(lab: Analysed, result: StageResult) -> dict[str, str]:
    files = lab.platform.store.manifest(result.address, result.digest).files
    return {name: entry.sha256 for name, entry in files.items()}


def same_without_cache(
    lab: Analysed, stage: Stage[Any], config: Any, **inputs: StageResult
) -> StageResult:
    """The stage's result, which a replay gives to the bit."""
    result = again(lab, stage, config, **inputs)
    lose_cache(lab)
    replayed = again(lab, stage, config, **inputs)
    assert contents(lab, replayed) == contents(lab, result)
    return result


def test_a_result_holds_no_tensor_of_its_recorded_steps(lab: Analysed, dpo: StageResult) -> None:
    sizes = lab.platform.store.manifest(dpo.address, dpo.digest).sizes
    recorded = {path: size for path, size in sizes.items() if path.startswith("forces/")}
    names = ("step.json", "batch.jsonl", TENSORS)
    assert set(recorded) == {f"forces/step-{step:08d}/{name}" for step in (1, 3) for name in names}
    assert sum(recorded.values()) < 2 * STEP_BYTES
    assert sum(recorded.values()) < 0.1 * sizes["model/model.safetensors"]


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": LoraConfig(rank=2), "optimizer": OptimizerConfig(name="adamw", epsilon=1e-6)},
        pytest.param(
            {"engine": EngineConfig(ranks=2, dtype="bf16")},
            marks=[pytest.mark.ranks, pytest.mark.study],
        ),
    ],
    ids=["adamw on adapters", "ranks in bf16"],
)
def test_forces_of_a_replay_are_those_of_the_cache(lab: Analysed, changes: dict[str, Any]) -> None:
    config = DPO.model_copy(update=changes)
    trained = lab.run(PREFERENCE, config, data=lab.data, model=lab.sft)
    inputs = {"data": lab.data, "trained": trained, "model": lab.sft}
    result = same_without_cache(lab, FORCES, ForcesConfig(pairs=2), **inputs)
    assert result.metrics["recorded_steps"] == 2
    assert 0 < result.metrics["first_order/unexplained"] < 1
    validities = lab.rows(result, "validity.jsonl", Validity)
    assert [(row.step, row.since) for row in validities] == [(1, None), (3, None), (3, 1)]


def test_a_training_on_groups_is_replayed_from_its_prompts(lab: Analysed) -> None:
    config = GroupTrainConfig(
        rewards=({"name": "tests.training.rewards.some_words"},),
        engine=PLAIN,
        steps=3,
        batch_size=4,
        completions=4,
        max_new_tokens=4,
        record_steps=(0, 2),
    )
    reads = {"prompts": lab.run(PROMPTS, DataConfig(world=WORLD)), "model": lab.sft}
    trained = lab.run(GROUP, config, **reads)
    inputs = {"data": lab.data, "trained": trained, **reads}
    forces = ForcesConfig(pairs=2, measures=("entropy", "kl"))
    result = same_without_cache(lab, FORCES, forces, **inputs)
    rows = lab.rows(result, "forces.jsonl", ForceRow)
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in ("entropy", "kl")}
    assert len(by_kind["entropy"]) == len(by_kind["kl"]) > 0
    assert all(row.measured != 0 for row in by_kind["kl"] if row.step == 2)


def test_maps_and_kernels_at_a_step_are_the_same_from_a_replay(
    lab: Analysed, dpo: StageResult
) -> None:
    inputs = {"data": lab.data, "model": dpo, "started": lab.sft}
    analysis = AnalysisJob(step=3, updating="recorded", **PAIRS)
    same_without_cache(lab, ANALYSIS, analysis, **inputs)
    kernel = KernelJob(labels=("step",), steps={"step": 3}, rank=2, probes=2, **PAIRS)
    models = {"data": lab.data, "model_step": dpo, "started": lab.sft}
    same_without_cache(lab, KERNEL, kernel, **models)


def test_the_flow_of_forces_finds_what_a_replay_reads(lab: Analysed, dpo: StageResult) -> None:
    lose_cache(lab)
    settings = {
        "checkpoints": {"step": {"result": short(dpo), "step": 1}, "end": {"result": short(dpo)}},
        "data_result": lab.data.address,
        "analysis": PAIRS | {"objective": SFTConfig().model_dump()},
        "kernel": PAIRS | {"rank": 2, "probes": 2},
    }
    planned = lab.plan(FLOW, settings)
    inputs = {step.name: set(step.inputs) for step in planned.steps}
    assert inputs["analysis-step"] == {"data", "model", "model-step.data", "model-step.model"}
    assert inputs["analysis-end"] == {"data", "model"}
    assert inputs["kernel"] >= {"model-step.data", "model-step.model"}
    lab.run_plan(planned)
    assert len(cached(lab)) == 3


def other_rate(*steps: int) -> Callable[..., float]:
    """A learning rate that is another one at the given steps."""
    rate = loop.learning_rate
    return lambda config, step: rate(config, step) * (1 + (step in steps))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((0, 1), r"replay of step = 1: gave .* where the training had"),
        ((1,), r"replay of step = 2: gave .* where the training had"),
        ((3,), r"replay of step = 3: gave another update than the training recorded"),
    ],
)
def test_a_replay_that_differs_is_refused(
    lab: Analysed,
    dpo: StageResult,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int, ...],
    message: str,
) -> None:
    """A step's loss and gradient norm tell of the steps before, its recorded update of itself."""
    shutil.rmtree(lab.platform.settings.cache / RECORDS, ignore_errors=True)
    monkeypatch.setattr(loop, "learning_rate", other_rate(*steps))
    inputs = {"data": lab.data, "trained": dpo, "model": lab.sft}
    with pytest.raises(ConfigError, match=message):
        again(lab, FORCES, ForcesConfig(pairs=2), **inputs)


def test_a_replay_without_what_the_training_read_is_refused(
    lab: Analysed, dpo: StageResult
) -> None:
    shutil.rmtree(lab.platform.settings.cache / RECORDS, ignore_errors=True)
    with pytest.raises(ConfigError, match=r"^trained = .* its input model is missing"):
        again(lab, FORCES, ForcesConfig(pairs=2), data=lab.data, trained=dpo)


GB = 10**9


@pytest.fixture
def gigabyte(tmp_path: Path) -> Path:
    """A folder with weights of one gigabyte, none of it written."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(GB)
    return tmp_path


@pytest.mark.parametrize(
    ("steps", "disk", "every", "segment"),
    [
        (20, 100 * GB, 1, 20),  # all records at once
        (20, 99 * GB, 1, 19),  # 95 of records and a state of 3
        (500, 2 * GB, 1, 18),  # nothing fits: 90 of records and 27 states of 3
        (500, 2 * GB, 10, 50),  # a tenth of the steps is recorded
        (1, 1, 1, 1),
    ],
)
def test_a_segment_is_as_long_as_the_disk_allows(
    gigabyte: Path, steps: int, disk: int, every: int, segment: int
) -> None:
    assert segment_steps(gigabyte, steps, disk, every=every) == segment
