"""Training beside TRL's trainers: same model, same rows in the same order, one process each.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.training [--only dpo sft grpo ranks]

FOLDER holds `models/tinystories-656k` and `data/hh`. Prints one JSON object on its last line.

- `dpo_throughput_vs_trl`, `sft_throughput_vs_trl`: pairs (rows) a second over TRL's, each the
  median over steps after warm-up; the ratio is the median over rounds in which each goes first
  in turn, and `..._spread` its largest less its smallest.
- `grpo_throughput_vs_trl`: the same of completions sampled, rewarded and learned from.
- `dpo_peak_memory_vs_trl` and the like: most resident memory above the level after loading, over
  TRL's.
- `zero2_two_ranks_over_one`: DPO pairs a second of two ZeRO-2 ranks over one, one thread each, in
  steps of 16 pairs as in the built-in study.

TRL runs at its best settings: no gradient checkpointing, reference log-probabilities precomputed,
no dropout, nothing logged or saved, SDPA, generation with its cache. Preparing the data set is
outside on both sides.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import (
    ROOT,
    in_turns,
    last_line,
    main,
    peak_above_start,
    ratio,
    real_inputs,
)

METHODS = ("dpo", "sft", "grpo", "ranks")
ROUNDS, WARM_UP, STEPS, BATCH, RANKS_BATCH = 5, 2, 15, 4, 16
COMPLETIONS, NEW_TOKENS = 8, 32
"""Of each prompt, where groups are sampled."""
CONTEXT = 512
AT_LEAST = {
    "dpo_throughput_vs_trl": 2.0,
    "sft_throughput_vs_trl": 1.5,
    "grpo_throughput_vs_trl": 1.0,
    "zero2_two_ranks_over_one": 1.5,
}
AT_MOST = {"dpo_peak_memory_vs_trl": 0.8}


def prepare(folder: Path) -> None:
    """Writes pairs that fit the context, and their prompts, for the steps of one run."""
    from dynolab.data.encode import Encoder
    from dynolab.data.rows import PromptRow, write_rows
    from dynolab.data.sources.load import DataConfig, load_data
    from models.language import load_tokenizer

    model, file = real_inputs("models/tinystories-656k", "data/hh/harmless-base_test.jsonl.gz")
    data = DataConfig(source="file", path=str(file), format="hh", heldout_rows=20)
    fits = Encoder(load_tokenizer(model), CONTEXT, "drop")
    pairs = [row for row in load_data(data).pairs if fits.example(row) is not None]
    rows = pairs[: BATCH * STEPS]
    write_rows(folder / "pairs.jsonl", rows)
    prompts = [PromptRow(id=row.id, prompt=row.prompt) for row in rows]
    write_rows(folder / "prompts.jsonl", prompts)


def ours(method: str, model: Path, rows: Path, ranks: int = 0) -> dict[str, float]:
    """Examples a second and peak memory; `ranks` of ZeRO-2, or the plain engine."""
    from dynolab.functions import ALLOWED
    from dynolab.training.config import GroupTrainConfig, TrainConfig
    from dynolab.training.job import TrainJob
    from dynolab.training.loop import train
    from models.language import load_language_model, load_tokenizer
    from tasks.runtime.launch.launcher import launch_ranks

    os.environ[ALLOWED] = "tests.training.rewards"
    settings: dict[str, Any] = {
        "objective": {"name": method},
        "steps": STEPS,
        "engine": {"kind": "plain", "ranks": 1},
        "batch_size": RANKS_BATCH if ranks else BATCH,
        "micro_batch_size": 8 if ranks else BATCH,
        "overlong": "truncate_left",
        "optimizer": {"name": "adamw", "learning_rate": 1e-5},
    }
    if ranks:
        settings["engine"] = {"kind": "deepspeed", "ranks": ranks, "zero_stage": 2}
    sampling = {
        "objective": {"name": "grpo", "aggregation": "dapo"},
        "completions": COMPLETIONS,
        "max_new_tokens": NEW_TOKENS,
        "rewards": [{"name": "tests.training.rewards.vowels"}],
    }
    grouped = method == "grpo"
    kind = GroupTrainConfig if grouped else TrainConfig
    config = kind.model_validate(settings | (sampling if grouped else {}))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        output = folder / "output"
        job = TrainJob(
            config=config,
            model=model,
            examples=rows,
            output=output,
            resume_out=folder / "states",
        )
        if ranks:
            (folder / "job.json").write_text(job.model_dump_json())
            launch_ranks(
                "tasks.ranks.train",
                folder / "job.json",
                ranks=ranks,
                logs=folder / "logs",
                environment={"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                while_running=lambda: None,
            )
            peak = 0
        else:
            tokenizer = load_tokenizer(model)
            policy = load_language_model(model, tokenizer=tokenizer)
            peak = peak_above_start(lambda: train(job, policy, tokenizer))
        lines = (output / "metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["metrics"]["train/examples_per_s"] for line in lines]
    each = COMPLETIONS if grouped else 1
    return {"speed": each * statistics.median(speeds[WARM_UP:]), "peak": peak}


def trl(method: str, model: Path, rows: Path) -> dict[str, float]:
    """Examples a second and peak memory of TRL's trainer of that method."""
    import trl as library
    from datasets import Dataset
    from transformers import TrainerCallback

    from dynolab.data.batches import draw
    from models.language import load_language_model, load_tokenizer
    from tests.training.rewards import vowels

    class Clock(TrainerCallback):
        """Seconds of every optimizer step."""

        seconds: list[float] = []  # noqa: RUF012

        def on_step_begin(self, *a: Any, **k: Any) -> None:
            self.seconds.append(-time.perf_counter())

        def on_step_end(self, *a: Any, **k: Any) -> None:
            self.seconds[-1] += time.perf_counter()

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [vowels("", [text], None)[0] for text in completions]

    read = [json.loads(line) for line in rows.read_text().splitlines()]
    # As our loop meets them in its first epoch: both sides make the same steps.
    columns = Dataset.from_list([read[row] for row in draw(0, len(read), len(read), seed=0)])
    tokenizer = load_tokenizer(model)
    grouped = method == "grpo"
    size = BATCH * COMPLETIONS if grouped else BATCH
    special: dict[str, Any] = {
        "dpo": {"max_length": CONTEXT, "precompute_ref_log_probs": True},
        "sft": {"max_length": CONTEXT},
        "grpo": {
            "num_generations": COMPLETIONS,
            "max_completion_length": NEW_TOKENS,
            "temperature": 1.0,
            "beta": 0.0,
            "steps_per_generation": 1,
            "loss_type": "dapo",
            "shuffle_dataset": False,
        },
    }
    if method == "sft":
        columns = columns.rename_column("chosen", "completion")
    names = {"dpo": ("prompt", "chosen", "rejected"), "sft": ("prompt", "completion")}
    name = method.upper()
    with tempfile.TemporaryDirectory() as scratch:
        trainer = getattr(library, f"{name}Trainer")(
            load_language_model(model, tokenizer=tokenizer),
            args=getattr(library, f"{name}Config")(
                output_dir=scratch,
                max_steps=STEPS,
                per_device_train_batch_size=size,
                learning_rate=1e-5,
                lr_scheduler_type="constant",
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                train_sampling_strategy="sequential",
                **special[method],
            ),
            train_dataset=columns.select_columns(names.get(method, ("prompt",))),
            processing_class=tokenizer,
            callbacks=[Clock()],
            **({"reward_funcs": reward} if grouped else {}),
        )
        peak = peak_above_start(trainer.train)
    return {"speed": size / statistics.median(Clock.seconds[WARM_UP:]), "peak": peak}


def alone(folder: Path, who: str, method: str, ranks: int = 0) -> dict[str, float]:
    """One run in a process of its own."""
    threads = 1 if ranks else None
    arguments = ("--one", str(folder), who, method, str(ranks))
    return dict(json.loads(last_line("training", *arguments, threads=threads)))


def compared(method: str, home: Path) -> dict[str, float]:
    """A method beside TRL's, or two ranks beside one."""
    if not (home / "pairs.jsonl").exists():
        prepare(home)
    works = [partial(alone, home, who, method) for who in ("ours", "trl")]
    names = {"speed": f"{method}_throughput_vs_trl", "peak": f"{method}_peak_memory_vs_trl"}
    if method == "ranks":
        works = [partial(alone, home, "ours", "dpo", ranks) for ranks in (2, 1)]
        names = {"speed": "zero2_two_ranks_over_one"}
    measured = in_turns(*works, repeats=ROUNDS)
    figures: dict[str, float] = {}
    for key, name in names.items():
        figures |= ratio(name, *([run[key] for run in runs] for runs in measured))
    return figures


def one(folder: str, who: str, method: str, ranks: str) -> dict[str, float]:
    """A run in this process."""
    (model,) = real_inputs("models/tinystories-656k")
    rows = Path(folder) / ("prompts.jsonl" if method == "grpo" else "pairs.jsonl")
    return trl(method, model, rows) if who == "trl" else ours(method, model, rows, int(ranks))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
    else:
        parts = {method: partial(compared, method) for method in METHODS}
        main(parts, at_least=AT_LEAST, at_most=AT_MOST)
