"""One measured training of ours."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from dynolab.rollouts.rewards import ALLOWED
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from tasks.runtime.launch.launcher import launch_ranks
from tests.benchmarks.resident import peak_above_start
from tests.benchmarks.training_work import (
    BATCH,
    COMPLETIONS,
    NEW_TOKENS,
    STEPS,
    WARM_UP,
    rows_of,
)


def ours(
    method: str, model: Path, folder: Path, ranks: int = 0, batch: int = BATCH
) -> dict[str, float]:
    """Examples a second and peak memory; `ranks` of ZeRO-2, or the plain engine."""
    with tempfile.TemporaryDirectory() as scratch:
        job = TrainJob(
            config=_settings(method, model.name, ranks, batch),
            model=model,
            examples=rows_of(folder, method, model.name),
            output=Path(scratch) / "output",
            resume_out=Path(scratch) / "resume",
        )
        peak = _run_ranks(job, Path(scratch)) if ranks else _run_here(job)
        lines = (job.output / "metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["metrics"]["train/examples_per_s"] for line in lines]
    each = COMPLETIONS if method == "grpo" else 1
    return {"speed": each * statistics.median(speeds[WARM_UP:]), "peak": peak}


def _settings(method: str, model: str, ranks: int, batch: int) -> TrainConfig | GroupTrainConfig:
    plain = {"kind": "plain", "ranks": 1}
    shared: dict[str, Any] = {
        "objective": {"name": method},
        "steps": STEPS[method, model],
        "engine": {"kind": "deepspeed", "ranks": ranks, "zero_stage": 2} if ranks else plain,
        "batch_size": batch,
        "micro_batch_size": min(batch, 8),
        "overlong": "truncate_left",
        "optimizer": {"name": "adamw", "learning_rate": 1e-5},
    }
    if method != "grpo":
        return TrainConfig.model_validate(shared)
    sampling = {
        "objective": {"name": "grpo", "aggregation": "dapo"},
        "completions": COMPLETIONS,
        "max_new_tokens": NEW_TOKENS,
        "rewards": [{"name": "tests.training.rewards.vowels"}],
    }
    return GroupTrainConfig.model_validate(shared | sampling)


def _run_here(job: TrainJob) -> int:
    os.environ[ALLOWED] = "tests.training.rewards"
    tokenizer = load_tokenizer(job.model)
    policy = load_language_model(job.model, tokenizer=tokenizer)
    return peak_above_start(lambda: train(job, policy, tokenizer))


def _run_ranks(job: TrainJob, folder: Path) -> int:
    file = folder / "job.json"
    file.write_text(job.model_dump_json())
    launch_ranks(
        "tasks.ranks.train",
        file,
        ranks=job.config.engine.ranks,
        logs=folder / "logs",
        environment={"OMP_NUM_THREADS": "1"},
        while_running=lambda: None,
    )
    return 0
