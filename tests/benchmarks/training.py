"""Training beside TRL's trainers: same model, same pairs, one process each.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.training

FOLDER holds `models/tinystories-656k`, `models/pythia-tokenizer` and `data/hh`. Prints one JSON
object on its last line; a figure of the randomly initialised Pythia-70m shape ends in `_70m`.

- `dpo_throughput_vs_trl`, `sft_throughput_vs_trl`: pairs (rows) a second over TRL's, each the
  median over steps after warm-up; the ratio is the median over interleaved rounds.
- `dpo_peak_memory_vs_trl`: most resident memory above the level after loading, over TRL's.
- `zero2_two_ranks_over_one`: pairs a second of two ZeRO-2 ranks over one, one thread each.

TRL runs at its best settings: no gradient checkpointing, reference log-probabilities precomputed,
no dropout, nothing logged or saved, SDPA. Preparing the data set is outside on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dynolab.data.rows import Example, read_rows, write_rows
from tests.benchmarks.resident import peak_above_start

BATCH, WARM_UP = 4, 3
STEPS = {"tinystories": 15, "70m": 8}
METHODS = ("dpo", "sft")
ROUNDS = 3
AT_LEAST = {
    "dpo_throughput_vs_trl": 2.0, "sft_throughput_vs_trl": 1.5, "zero2_two_ranks_over_one": 1.5,
}  # fmt: skip
AT_MOST = {"dpo_peak_memory_vs_trl": 0.8}


def prepare(folder: Path) -> None:
    """Both models with their tokenizers, and the pairs that fit the smaller context."""
    import torch
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

    from dynolab.data.encode import Encoder
    from dynolab.data.sources import DataConfig, load_data
    from models.language import load_language_model, load_tokenizer, save_language_model

    source = Path(os.environ["DYNOLAB_TEST_DATA"])
    stories = source / "models" / "tinystories-656k"
    tokenizer = load_tokenizer(stories)
    save_language_model(load_language_model(stories), tokenizer, folder / "tinystories")
    file = source / "models" / "pythia-tokenizer" / "tokenizer.json"
    end = "<|endoftext|>"
    pythia = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=end, pad_token=end)
    torch.manual_seed(0)
    shape = GPTNeoXConfig(
        vocab_size=50_304, hidden_size=512, num_hidden_layers=6, num_attention_heads=8,
        intermediate_size=2048, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    save_language_model(GPTNeoXForCausalLM(shape), pythia, folder / "70m")
    data = load_data(
        DataConfig(source="file", path=str(source / "data" / "hh" / "harmless-base_test.jsonl.gz"),
                   format="hh", heldout_rows=20)
    )  # fmt: skip
    fits = Encoder(tokenizer, 512, "drop")
    pairs = [row for row in data.pairs if fits.example(row) is not None]
    write_rows(folder / "train.jsonl", pairs[: 2 * BATCH * max(STEPS.values())])


def ours(method: str, model: Path, folder: Path, ranks: int = 0) -> dict[str, float]:
    """Pairs a second and peak memory of our loop; `ranks` of ZeRO-2, or the plain engine."""
    from dynolab.training.config import TrainConfig
    from dynolab.training.job import TrainJob

    steps = STEPS[model.name]
    engine = {"kind": "deepspeed", "ranks": ranks, "zero_stage": 2} if ranks else {
        "kind": "plain", "ranks": 1}  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        job = TrainJob(
            config=TrainConfig.model_validate(
                {"objective": {"name": method}, "engine": engine, "steps": steps,
                 "batch_size": BATCH, "micro_batch_size": BATCH, "overlong": "truncate_left",
                 "optimizer": {"name": "adamw", "learning_rate": 1e-5}}
            ),
            model=model,
            examples=folder / "train.jsonl",
            output=Path(scratch) / "output",
            resume_out=Path(scratch) / "resume",
        )  # fmt: skip
        peak = _run_ranks(job, Path(scratch)) if ranks else _run_here(job)
        lines = (job.output / "metrics.jsonl").read_text().splitlines()
    speeds = [json.loads(line)["metrics"]["train/examples_per_s"] for line in lines]
    return {"speed": statistics.median(speeds[WARM_UP:]), "peak": peak}


def _run_here(job: Any) -> int:
    from dynolab.training.loop import train
    from models.language import load_language_model, load_tokenizer

    tokenizer = load_tokenizer(job.model)
    policy = load_language_model(job.model, tokenizer=tokenizer)
    return peak_above_start(lambda: train(job, policy, tokenizer))


def _run_ranks(job: Any, folder: Path) -> int:
    from tasks.runtime.launcher import launch_ranks

    file = folder / "job.json"
    file.write_text(job.model_dump_json())
    launch_ranks(
        "tasks.ranks.train", file, ranks=job.config.engine.ranks, logs=folder / "logs",
        environment={"OMP_NUM_THREADS": "1"}, while_running=lambda: None,
    )  # fmt: skip
    return 0


def trl(method: str, model: Path, folder: Path) -> dict[str, float]:
    """The same by TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from models.language import load_language_model, load_tokenizer

    tokenizer = load_tokenizer(model)
    policy = load_language_model(model, tokenizer=tokenizer)
    rows = list(read_rows(folder / "train.jsonl", Example))
    shared: dict[str, Any] = {
        "output_dir": str(folder / "trl"), "per_device_train_batch_size": BATCH,
        "max_steps": STEPS[model.name], "learning_rate": 1e-5, "gradient_checkpointing": False,
        "use_cpu": True, "report_to": [], "save_strategy": "no", "logging_strategy": "no",
        "disable_tqdm": True, "max_length": 512, "bf16": False, "lr_scheduler_type": "constant",
    }  # fmt: skip
    if method == "dpo":
        columns = {
            "prompt": [row.prompt for row in rows],
            "chosen": [row.chosen for row in rows],
            "rejected": [row.rejected for row in rows],
        }
        trainer = DPOTrainer(
            policy, args=DPOConfig(**shared, precompute_ref_log_probs=True),
            train_dataset=Dataset.from_dict(columns), processing_class=tokenizer,
        )  # fmt: skip
    else:
        columns = {
            "prompt": [row.prompt for row in rows], "completion": [row.chosen for row in rows],
        }  # fmt: skip
        trainer = SFTTrainer(
            policy, args=SFTConfig(**shared),
            train_dataset=Dataset.from_dict(columns), processing_class=tokenizer,
        )  # fmt: skip
    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *a: Any, **k: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *a: Any, **k: Any) -> None:
            seconds.append(time.perf_counter() - self.began)

    trainer.add_callback(Clock())
    assert torch.get_num_threads() >= 1
    peak = peak_above_start(trainer.train)
    return {"speed": BATCH / statistics.median(seconds[WARM_UP:]), "peak": peak}


def alone(folder: Path, *arguments: str, threads: int | None = None) -> dict[str, float]:
    """One run in a process of its own."""
    environment = dict(os.environ)
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "tests.benchmarks.training", "--one", str(folder), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def against_trl(folder: Path, model: str, method: str, rounds: int) -> dict[str, float]:
    runs = [(alone(folder, "ours", method, model), alone(folder, "trl", method, model))
            for _ in range(rounds)]  # fmt: skip
    suffix = "" if model == "tinystories" else f"_{model}"
    return {
        f"{method}_throughput_vs_trl{suffix}":
            statistics.median(mine["speed"] / theirs["speed"] for mine, theirs in runs),
        f"{method}_peak_memory_vs_trl{suffix}":
            statistics.median(mine["peak"] / theirs["peak"] for mine, theirs in runs),
        f"{method}_per_s{suffix}": statistics.median(mine["speed"] for mine, _ in runs),
        f"{method}_per_s_trl{suffix}": statistics.median(theirs["speed"] for _, theirs in runs),
    }  # fmt: skip


def over_ranks(folder: Path, rounds: int) -> dict[str, float]:
    ratios = []
    for _ in range(rounds):
        one, two = (
            alone(folder, "ranks", "dpo", "tinystories", str(n), threads=1)["speed"] for n in (1, 2)
        )
        ratios.append(two / one)
    return {"zero2_two_ranks_over_one": statistics.median(ratios)}


def one(folder: Path, who: str, method: str, model: str, ranks: str = "0") -> dict[str, float]:
    if who == "trl":
        return trl(method, folder / model, folder)
    return ours(method, folder / model, folder, int(ranks))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs="+")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if arguments.one:
        folder, *rest = arguments.one
        print(json.dumps(one(Path(folder), *rest)))
        return
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        for model in STEPS:
            for method in METHODS:
                found |= against_trl(folder, model, method, arguments.rounds)
                print(json.dumps(found), flush=True)
        found |= over_ranks(folder, arguments.rounds)
    figures: dict[str, object] = {name: float(f"{value:.4g}") for name, value in found.items()}
    bars = {name: [bound, value >= bound] for name, value in found.items()
            for key, bound in AT_LEAST.items() if name.removesuffix("_70m") == key}  # fmt: skip
    bars |= {name: [bound, value <= bound] for name, value in found.items()
             for key, bound in AT_MOST.items() if name.removesuffix("_70m") == key}  # fmt: skip
    print(json.dumps(figures | {"bars": bars}))


if __name__ == "__main__":
    main()
