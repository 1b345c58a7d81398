"""A finished training run again, so that each of its steps can be read, the last one first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.study import MetricsLine
from dynolab.training.config import LoopConfig
from dynolab.training.job import TrainJob
from dynolab.training.step_record import StepRecord
from tasks.runtime.work import Work
from tasks.training import start

COPIES = 5
"""Weights before and after a step and the optimizer's tensors: at most five copies of the model."""

COMPARED = ("train/loss", "train/grad_norm")
"""Metrics of a step that are the same to the bit where a replay is."""


@dataclass(frozen=True)
class Replay:
    """A training that is run again from its start, segment by segment.

    It runs once as a whole, keeps a resume state every `segment` steps and records the steps of
    the last segment. Every earlier segment is then run again from its state. Records of one
    segment are on disk at a time.

    - `config`: the training's settings; `steps`: how many it made.
    - `model`, `examples`: what it began with.
    - `metrics`: the training's own `metrics.jsonl`, which the replay must repeat to the bit.
    - `read`: the steps that are recorded.
    """

    work: Work[Any]
    config: LoopConfig
    steps: int
    model: Path
    examples: Path
    metrics: Path
    read: frozenset[int]
    segment: int

    def records(self, stop: int, on_step: Callable[[str], None]) -> Iterator[StepRecord]:
        """The steps to be read below `stop`, the last one first.

        Steps that moved no weight are left out: they have no record.

        **Raises:** `ConfigError` at the first step that differs from the training.
        """
        folder = self.work.scratch / "replay"
        states = folder / "states"
        begins = range(0, stop, self.segment)
        for begin in reversed(begins):
            output = folder / f"from-{begin}"
            end = min(begin + self.segment, stop)
            first = begin == begins[-1]
            on_step("trains again" if first else f"trains steps {begin} to {end - 1} again")
            self._run(output, states, None if first else begin, range(begin, end))
            self._compare(output / "metrics.jsonl")
            for record in sorted((output / "forces").glob("step-*"), reverse=True):
                yield StepRecord.load(record)
            shutil.rmtree(output)
        shutil.rmtree(folder, ignore_errors=True)

    def _run(self, output: Path, states: Path, begin: int | None, recorded: range) -> None:
        """Trains up to the end of the recorded steps; from a state, or from the start."""
        config = self.config.model_copy(
            update={
                "steps": recorded.stop,
                "probe_every": 0,
                "alarm": None,
                "best": None,
                "ledger": None,
                "checkpoint_every": self.segment if begin is None else 0,
                "record_steps": tuple(step for step in recorded if step in self.read),
            }
        )
        states.mkdir(parents=True, exist_ok=True)
        logs = self.work.logs / "replay"
        logs.mkdir(exist_ok=True)
        job = TrainJob(
            config=config,
            model=self.model,
            examples=self.examples,
            reference_cache=self.work.cache / "reference",
            output=output,
            logs=logs,
            resume_out=states,
            resume_from=states / f"step-{begin:08d}" if begin else None,
        )
        start(job, self.work, while_running=lambda: None)

    def _compare(self, replayed: Path) -> None:
        """Refuses a replay whose loss or gradient norm is not the training's, to the bit."""
        ours, theirs = _by_step(replayed), _by_step(self.metrics)
        for step in sorted(ours):
            if ours[step] != theirs.get(step):
                raise ConfigError(
                    "replay of step",
                    step - 1,
                    f"gave {json.dumps(ours[step])} where the training had "
                    f"{json.dumps(theirs.get(step))}; train and replay on the same machine with "
                    "the same versions and number of threads",
                )


def learned_steps(metrics: Path) -> list[int]:
    """The steps of a training that learned from something, by its `metrics.jsonl`."""
    return [step - 1 for step in sorted(_by_step(metrics))]


def _by_step(metrics: Path) -> dict[int, dict[str, float]]:
    """What is compared of every step that learned."""
    lines: dict[int, dict[str, float]] = {}
    for line in read_rows(metrics, MetricsLine):
        values = {name: line.metrics[name] for name in COMPARED if name in line.metrics}
        if values:
            lines[line.step] = values
    return lines


def segment_steps(model: Path, steps: int, disk_bytes: int) -> int:
    """How many steps' records fit into a number of bytes; one at least."""
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    return max(1, min(steps, disk_bytes // (COPIES * size)))
