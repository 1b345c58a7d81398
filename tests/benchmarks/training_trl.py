"""One measured training of TRL's."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from dynolab.data.batches import draw
from dynolab.data.rows import Example, PromptRow, read_rows
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.resident import peak_above_start
from tests.benchmarks.training_work import (
    BATCH,
    COMPLETIONS,
    NEW_TOKENS,
    STEPS,
    WARM_UP,
    rows_of,
)
from tests.training.rewards import vowels


def trl(method: str, model: Path, folder: Path) -> dict[str, float]:
    """Examples a second and peak memory of TRL's trainer of that method."""
    tokenizer = load_tokenizer(model)
    policy = load_language_model(model, tokenizer=tokenizer)
    shared: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "max_steps": STEPS[method, model.name],
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "train_sampling_strategy": "sequential",
    }
    rows = rows_of(folder, method, model.name)
    make = {"dpo": _dpo, "sft": _sft, "grpo": _grpo}[method]
    trainer = make(policy, tokenizer, _in_order(rows, method), shared)
    clock = Clock()
    trainer.add_callback(clock)
    peak = peak_above_start(trainer.train)
    size = BATCH * COMPLETIONS if method == "grpo" else BATCH
    return {"speed": size / statistics.median(clock.seconds[WARM_UP:]), "peak": peak}


class Clock(TrainerCallback):
    """Seconds of every optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = 0.0

    def on_step_begin(self, *a: Any, **k: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *a: Any, **k: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def _in_order(file: Path, method: str) -> list[Any]:
    """The rows as our loop meets them in its first epoch: both sides make the same steps."""
    rows: list[Any] = list(read_rows(file, PromptRow if method == "grpo" else Example))
    return [rows[number] for number in draw(0, len(rows), len(rows), seed=0)]


def _dpo(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Any],
    shared: dict[str, Any],
) -> DPOTrainer:
    columns = {
        "prompt": [row.prompt for row in rows],
        "chosen": [row.chosen for row in rows],
        "rejected": [row.rejected for row in rows],
    }
    settings = DPOConfig(
        **shared, per_device_train_batch_size=BATCH, max_length=512, precompute_ref_log_probs=True
    )
    return DPOTrainer(
        policy, args=settings, train_dataset=Dataset.from_dict(columns), processing_class=tokenizer
    )


def _sft(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Any],
    shared: dict[str, Any],
) -> SFTTrainer:
    columns = {"prompt": [row.prompt for row in rows], "completion": [row.chosen for row in rows]}
    settings = SFTConfig(**shared, per_device_train_batch_size=BATCH, max_length=512)
    return SFTTrainer(
        policy, args=settings, train_dataset=Dataset.from_dict(columns), processing_class=tokenizer
    )


def _grpo(
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[Any],
    shared: dict[str, Any],
) -> GRPOTrainer:
    settings = GRPOConfig(
        **shared,
        per_device_train_batch_size=BATCH * COMPLETIONS,
        num_generations=COMPLETIONS,
        max_completion_length=NEW_TOKENS,
        temperature=1.0,
        beta=0.0,
        num_iterations=1,
        steps_per_generation=1,
        loss_type="dapo",
        shuffle_dataset=False,
    )

    def reward(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        return [vowels("", [text], rows[0])[0] for text in completions]

    return GRPOTrainer(
        policy,
        reward_funcs=reward,
        args=settings,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [row.prompt for row in rows]}),
    )
