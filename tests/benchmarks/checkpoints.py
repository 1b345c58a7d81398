"""What resume states cost: on the way to the store, and to the training that waits for them.

    python -m tests.benchmarks.checkpoints

Prints one JSON object on its last line:

- `checkpoint_upload_over_raw`: bytes a second of a commit (hashes, upload, what proves that all is
  there, manifest, signature, marker, pruning) over those of boto3's multipart upload of the same
  files to the same server; a state of two ranks, 200 MB. Median of 7 interleaved pairs, after one
  that does not count; `_low` and `_high`: the smallest and largest. `checkpoint_mb_per_s` and
  `raw_mb_per_s`: the medians of both.
- `training_stall_fraction`: of a training loop's seconds those in which it waits for its resume
  states, saved every 50 steps and taken to an S3 store beside it: SFT of the built-in study's model
  on two DeepSpeed ranks (ZeRO-2). `training_stall_s`: one such wait; `training_loop_s`: the loop.
- `bars`: [bound, met].
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3

from dynolab.data.sources.load import DataConfig
from dynolab.store import Manifest, Store
from dynolab.training.config import EngineConfig, TrainConfig
from tasks import training
from tasks.base import BASE, BaseConfig
from tasks.data import DATA
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.stage import Platform, run_stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import PlainLines, Progress
from tests.benchmarks.figures import report, seconds, spread
from tests.conftest import start_s3
from tests.runtime.doubles import MemoryTracking

PAIRS = 7
SHARDS, SHARD_BYTES = 2, 100_000_000
STEPS, EVERY = 400, 50
KEY = "ca" * 32
AT_LEAST = {"checkpoint_upload_over_raw": 0.8}
AT_MOST = {"training_stall_fraction": 0.05}
BUCKET = "checkpoints"
LOGIN = {
    "AWS_ACCESS_KEY_ID": "benchmark",
    "AWS_SECRET_ACCESS_KEY": "benchmark",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def s3() -> Iterator[tuple[Path, str]]:
    """A work folder, and the address of an S3 server of its own with a bucket."""
    with tempfile.TemporaryDirectory() as name, patch.dict(os.environ, LOGIN):
        process, address = start_s3(Path(name) / "s3.log")
        try:
            boto3.client("s3", endpoint_url=address).create_bucket(Bucket=BUCKET)
            yield Path(name), address
        finally:
            process.kill()
            process.wait()


def state(folder: Path) -> list[Path]:
    """A resume state's files: shards and random numbers of every rank, and small ones."""
    (folder / "engine").mkdir(parents=True)
    made = random.Random(0)
    for rank in range(SHARDS):
        shard = folder / "engine" / f"shard-{rank}.safetensors"
        shard.write_bytes(made.randbytes(SHARD_BYTES))
        (folder / f"random-{rank}.safetensors").write_bytes(made.randbytes(5_000))
        (folder / f"random-{rank}.json").write_bytes(made.randbytes(9_000))
    (folder / "state.json").write_bytes(made.randbytes(2_000))
    (folder / "metrics.jsonl").write_bytes(made.randbytes(100_000))
    return [path for path in folder.rglob("*") if path.is_file()]


def checkpoint_upload() -> dict[str, float]:
    """Committed bytes a second over those of a plain multipart upload, side by side."""
    with s3() as (folder, address):
        files = state(folder / "state")
        size = sum(path.stat().st_size for path in files)
        client = boto3.client("s3", endpoint_url=address)
        store = Store(f"s3://{BUCKET}/lab", cache=folder / "cache", endpoint=address)
        place, manifest = store.place("sft", KEY), Manifest(stage="sft", key=KEY, version=1)

        def raw(number: int) -> None:
            for path in files:
                client.upload_file(str(path), BUCKET, f"raw/{path.relative_to(folder)}")

        def ours(number: int) -> None:
            place.commit_resume(number, folder / "state", manifest)

        rates: dict[str, list[float]] = {"raw": [], "ours": []}
        for number in range(PAIRS + 1):
            order = [("raw", raw), ("ours", ours)]
            for name, deed in order if number % 2 else reversed(order):
                taken = seconds(lambda deed=deed, number=number: deed(number))  # type: ignore[misc]
                if number:  # the first makes connections and loads modules
                    rates[name].append(size / taken / 1e6)
    ratios = [ours / raw for raw, ours in zip(rates["raw"], rates["ours"], strict=True)]
    return {
        **spread("checkpoint_upload_over_raw", ratios),
        "checkpoint_mb_per_s": statistics.median(rates["ours"]),
        "raw_mb_per_s": statistics.median(rates["raw"]),
    }


def training_stall() -> dict[str, float]:
    """The share of a training's time in which it waits for its resume states."""
    with s3() as (folder, address):
        place = Settings(home=folder / "home", store=f"s3://{BUCKET}/lab", store_endpoint=address)
        store = Store(place.store, cache=place.cache, endpoint=address)
        platform = Platform(
            place,
            store,
            MemoryTracking,
            lambda: Progress(PlainLines(StringIO())),  # type: ignore[arg-type]
        )
        stall_file = folder / "stall.json"

        def timed(module: str, job: Path, **how: Any) -> None:
            how["environment"] = {**how["environment"], "STALL_FILE": str(stall_file)}
            launch_ranks("tests.benchmarks.stall_ranks", job, **how)

        alone = EngineConfig(kind="plain", ranks=1)
        data = run_stage(DATA, DataConfig(), {}, platform)
        first = BaseConfig(training=TrainConfig(engine=alone, steps=20))
        base = run_stage(BASE, first, {"data": data}, platform)
        config = TrainConfig(
            engine=EngineConfig(ranks=2, zero_stage=2), steps=STEPS, checkpoint_every=EVERY
        )
        with patch.object(training, "launch_ranks", timed):
            run_stage(training.SFT, config, {"data": data, "model": base}, platform)
        stall = json.loads(stall_file.read_text())
    return {
        "training_stall_fraction": stall["waiting"] / stall["loop"],
        "training_stall_s": stall["waiting"] / stall["times"],
        "training_loop_s": stall["loop"],
    }


def main() -> None:
    report(checkpoint_upload() | training_stall(), at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
