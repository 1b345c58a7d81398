"""A small policy with its tokenizer and preference rows, made in a moment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from dynolab.data.rows import (
    Example,
    ProbeRow,
    PromptRow,
    read_rows,
    read_value,
    spaced,
    write_rows,
)
from dynolab.results.study import MetricsLine, TrainingSummary
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from dynolab.training.step_record import StepRecord
from models.language import load_language_model, load_tokenizer

WORDS = [f"w{number}" for number in range(40)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    ids = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )


def make_policy(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> GPTNeoXForCausalLM:
    torch.manual_seed(seed)
    shape = GPTNeoXConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=48,
        attention_dropout=0.0,
        hidden_dropout=0.0,
    )
    return GPTNeoXForCausalLM(shape).eval()


def make_rows(count: int = 24) -> list[Example]:
    rng = random.Random(1)

    def say(low: int, high: int) -> str:
        return spaced(" ".join(rng.choices(WORDS, k=rng.randint(low, high))))

    return [
        Example(
            id=f"r{i}",
            prompt=say(2, 8),
            chosen=say(1, 9),
            rejected=say(1, 9),
            wins=(0.5 + i / 60, 0.5 - i / 80),
        )
        for i in range(count)
    ]


def make_files(folder: Path, seed: int = 0) -> None:
    """Writes `model/`, `train.jsonl`, `labelled.jsonl`, `prompts.jsonl` and `probes.jsonl`."""
    tokenizer = make_tokenizer()
    make_policy(tokenizer, seed).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rows = make_rows()
    write_rows(folder / "train.jsonl", rows)
    labels = ({"rejected": None, "label": number % 3 > 0} for number in range(len(rows)))
    labelled = [row.model_copy(update=own) for row, own in zip(rows, labels, strict=True)]
    write_rows(folder / "labelled.jsonl", labelled)
    prompts = [PromptRow(id=row.id, prompt=row.prompt, answer=row.chosen) for row in rows]
    write_rows(folder / "prompts.jsonl", prompts)
    write_rows(folder / "probes.jsonl", probes_of(rows[:5]))


def probes_of(pairs: Sequence[Example]) -> list[ProbeRow]:
    """Both answers of training pairs, to be watched."""
    return [
        ProbeRow(
            pair_id=row.id,
            split="train",
            kind=kind,
            prompt=row.prompt,
            response=text or "",
            made_by="data",
        )
        for row in pairs
        for kind, text in (("chosen", row.chosen), ("rejected", row.rejected))
    ]


def settings(**changes: Any) -> TrainConfig:
    """DPO with momentum, clipping and warm-up at work."""
    whole: dict[str, Any] = {
        "objective": {"name": "dpo"},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1},
        "engine": {"kind": "plain", "ranks": 1},
        "steps": 6,
        "batch_size": 8,
        "micro_batch_size": 2,
        "warmup_steps": 3,
        "clip_norm": 0.5,
        "probe_every": 2,
        "checkpoint_every": 3,
        "record_steps": [0, 1, 3],
    }
    return TrainConfig.model_validate(whole | changes)


def group_settings(**changes: Any) -> GroupTrainConfig:
    """GRPO on rollouts of two steps, with a divergence from the reference."""
    whole: dict[str, Any] = {
        "objective": {"name": "grpo", "kl": 0.05},
        "rewards": [{"name": "tests.training.rewards.low_words"}],
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "engine": {"kind": "plain", "ranks": 1},
        "steps": 5,
        "batch_size": 4,
        "micro_batch_size": 2,
        "completions": 4,
        "max_new_tokens": 6,
        "updates_per_rollout": 2,
        "checkpoint_every": 3,
    }
    return GroupTrainConfig.model_validate(whole | changes)


def make_job(
    inputs: Path,
    folder: Path,
    config: TrainConfig | GroupTrainConfig,
    resume_from: Path | None = None,
) -> TrainJob:
    (folder / "resume").mkdir(parents=True, exist_ok=True)
    sampled = isinstance(config, GroupTrainConfig)
    labelled = config.objective.name == "kto"
    rows = "labelled" if labelled else "prompts" if sampled else "train"
    return TrainJob(
        config=config,
        model=inputs / "model",
        examples=inputs / f"{rows}.jsonl",
        probes=inputs / "probes.jsonl",
        output=folder / "output",
        resume_out=folder / "resume",
        resume_from=resume_from,
    )


def run(job: TrainJob) -> TrainJob:
    """Trains from the job's model to the end."""
    train(job, load_language_model(job.model), load_tokenizer(job.model))
    return job


def run_small(
    inputs: Path,
    folder: Path,
    config: TrainConfig | GroupTrainConfig,
    resume_from: Path | None = None,
) -> TrainJob:
    """Makes a job of `make_job` and trains it to the end."""
    return run(make_job(inputs, folder, config, resume_from))


def logged(job: TrainJob) -> list[MetricsLine]:
    return list(read_rows(job.output / "metrics.jsonl", MetricsLine))


def metrics(job: TrainJob) -> list[dict[str, float]]:
    """What was logged, line by line."""
    return [line.metrics for line in logged(job)]


def summary(job: TrainJob) -> TrainingSummary:
    return read_value(job.output / "summary.json", TrainingSummary)


def step_record(job: TrainJob, step: int) -> StepRecord:
    return StepRecord.load(job.output / "forces" / f"step-{step:08d}")


def state(job: TrainJob, step: int) -> Path:
    """Folder of the resume state after so many steps."""
    return job.resume_out / f"step-{step:08d}"


def trained_weights(job: TrainJob) -> dict[str, torch.Tensor]:
    return load_file(job.output / "model" / "model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def apart(one: TrainJob, other: TrainJob) -> float:
    """Largest difference between the weights that two trainings ended with."""
    return distance(trained_weights(one), trained_weights(other))
