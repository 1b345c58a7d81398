"""Recorded steps of a training: from this machine's cache, else from the training run again."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.study import OTHER_RANKS, MetricsLine
from dynolab.store import Manifest
from dynolab.training.config import GroupTrainConfig, LoopConfig, TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.step_record import RecordCache, StepRecord
from tasks.runtime.work import Work
from tasks.shared.policies import ADAPTER
from tasks.training import COPIES, RECORDS, start

log = logging.getLogger(__name__)

_SETTINGS: TypeAdapter[TrainConfig | GroupTrainConfig] = TypeAdapter(
    Annotated[TrainConfig | GroupTrainConfig, Field(union_mode="left_to_right")]
)


def record_folders(work: Work[Any], name: str) -> list[Path]:
    """The folders of all recorded steps of a training, from the first step to the last."""
    return sorted((work.input_folder(name) / "forces").glob("step-*"))


def recorded_steps(work: Work[Any], name: str, folders: Sequence[Path]) -> Iterator[StepRecord]:
    """Recorded steps of the training that is input `name`.

    Its result holds the facts, the examples and the tensors' hashes of every recorded step. The
    tensors are read from this machine's cache; from the first step on that is not there, the
    training is run again from what it read, which the cache then keeps. The tensors have the
    recorded hashes either way.

    **Arguments:** `folders`: some of `record_folders`, in their order.

    **Raises:** `ConfigError` at the first step of a replay that differs from the training, and if
    a replay is needed and what the training read is not among the inputs.
    """
    cache = RecordCache(work.cache / RECORDS)
    for number, folder in enumerate(folders):
        record = cache.load(folder)
        if record is None:
            yield from _replayed(work, name, folders[number:], cache)
            return
        yield record


def recorded_step(work: Work[Any], name: str, step: int) -> StepRecord:
    """One recorded step of the training that is input `name`; raises as `recorded_steps`."""
    (record,) = recorded_steps(work, name, [work.input_folder(name, f"forces/step-{step:08d}")])
    return record


def started_from(work: Work[Any], name: str) -> Path:
    """Folder of the model that the training that is input `name` began with."""
    return _read_by(work, name, work.input_manifest(name), "model")


def _replayed(
    work: Work[Any], name: str, folders: Sequence[Path], cache: RecordCache
) -> Iterator[StepRecord]:
    replay = _replay(work, name)
    log.info("%s: recorded steps are not in this machine's cache, so it is trained again", name)
    with TemporaryDirectory(prefix="replay-", dir=work.scratch) as scratch:
        output = Path(scratch)
        steps = [int(folder.name.removeprefix("step-")) for folder in folders]
        replay.run(output, steps, output / "states")
        for folder in folders:
            again = output / "forces" / folder.name
            record = StepRecord.load(again)
            cache.take(again)
            if _content(again) != _content(folder):
                step = record.facts.step
                raise replay_differs(step, "gave another update than the training recorded")
            yield record


def _content(record: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in record.iterdir()}


def _replay(work: Work[Any], name: str) -> Replay:
    """The replay of the training that is input `name`, with the settings that it had."""
    manifest = work.input_manifest(name)
    config = _SETTINGS.validate_python(manifest.config)
    on_groups = isinstance(config, GroupTrainConfig)
    return Replay(
        work=work,
        config=config,
        model=started_from(work, name) / "model",
        examples=_read_by(work, name, manifest, "prompts" if on_groups else "data") / "train.jsonl",
        metrics=work.input_folder(name) / "metrics.jsonl",
    )


def _read_by(work: Work[Any], name: str, manifest: Manifest, role: str) -> Path:
    """Folder of what a training read as its input `role`; some input of `work` has its content."""
    digest = manifest.parents[role]
    for input_name, source in work.inputs.items():
        if source.digest == digest:
            return work.input_folder(input_name)
    raise ConfigError(
        name,
        work.inputs[name].address,
        "the tensors of its recorded steps are not in this machine's cache, and to train it again "
        f"its input {role} is missing; run the flow that trained it again, with --fresh",
    )


DISK_BYTES = 2**31
"""What a replay may take on any disk; the records and states of small models fit."""

STATE_COPIES = 3
"""A resume state: weights and the optimizer's tensors, at most three copies of the model."""

COMPARED = ("train/loss", "train/grad_norm")
"""Metrics of a step that are the same to the bit where a replay is."""


@dataclass(frozen=True)
class Replay:
    """A training that is run again from its start, or in segments from states of the replay.

    - `config`: the training's settings.
    - `model`, `examples`: what it began with.
    - `metrics`: the training's own `metrics.jsonl`, which the replay must repeat to the bit.
    - `steps`: folder of the steps that the training kept, if it did.
    """

    work: Work[Any]
    config: LoopConfig
    model: Path
    examples: Path
    metrics: Path
    steps: Path | None = None

    def segment(self, steps: int, disk_bytes: int | None, *, every: int = 1) -> int:
        """How many steps a segment has (`segment_steps`).

        **Arguments:** `disk_bytes`: default: half of what the disk has free, `DISK_BYTES` at least.
        """
        bound = disk_bytes or max(DISK_BYTES, shutil.disk_usage(self.work.scratch).free // 2)
        moved = self.model if self.config.lora is None else self.metrics.parent / ADAPTER
        return segment_steps(moved, steps, bound, every=every)

    def backwards(
        self, steps: Sequence[int], segment: int, on_step: Callable[[str], None]
    ) -> Iterator[StepRecord]:
        """Some steps, which learned, the last one first.

        From what the training kept, if it kept them all. Else it runs once as a whole, keeps a
        resume state every `segment` steps and records
        the steps of the last segment. Every earlier segment is then run again from its state.
        Records of one segment are on disk at a time, and the states of segments still to come. The
        last segment's stay for the next call, which takes a step that is among them from there.

        **Raises:** `ConfigError` at the first step that differs from the training.
        """
        folder = self.work.scratch / "replay"
        states, copies = folder / "states", folder / "kept"
        for records in filter(None, (copies, self.steps)):
            there = [records / f"step-{step:08d}" for step in sorted(steps, reverse=True)]
            if all(record.exists() for record in there):
                yield from map(StepRecord.load, there)
                return
        parts: dict[int, list[int]] = {}
        for step in sorted(steps, reverse=True):
            parts.setdefault(step - step % segment, []).insert(0, step)
        for number, (begin, recorded) in enumerate(parts.items()):
            output = folder / f"from-{begin}"
            if number == 0:
                on_step("trains again")
                self.run(output, recorded, states, checkpoint_every=segment)
            else:
                on_step(f"trains again from step {begin}")
                self.run(output, recorded, states, begin=begin)
            for record in sorted((output / "forces").glob("step-*"), reverse=True):
                yield StepRecord.load(record)
            shutil.rmtree(copies, ignore_errors=True)
            (output / "forces").rename(copies)
            shutil.rmtree(output)
            shutil.rmtree(_state(states, begin), ignore_errors=True)
        shutil.rmtree(states, ignore_errors=True)

    def run(
        self,
        output: Path,
        recorded: Sequence[int],
        states: Path,
        *,
        begin: int = 0,
        checkpoint_every: int = 0,
    ) -> None:
        """Trains up to the last recorded step; from the state after `begin` steps if there are any.

        Records the steps, and compares what it logged with the training.

        **Raises:** `ConfigError` at the first step that differs from the training.
        """
        _check_one_layout(self.metrics, recorded[-1])
        config = self.config.model_copy(
            update={
                "steps": recorded[-1] + 1,
                "probe_every": 0,
                "alarm": None,
                "best": None,
                "ledger": None,
                "keep_steps": False,
                "checkpoint_every": checkpoint_every,
                "record_steps": tuple(recorded),
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
            whole_steps=self.config.steps,
            output=output,
            logs=logs,
            resume_out=states,
            resume_from=_state(states, begin) if begin else None,
        )
        start(job, self.work, while_running=lambda: None)
        # Refuses a replay whose loss or gradient norm is not the training's, to the bit.
        ours, theirs = _by_step(output / "metrics.jsonl"), _by_step(self.metrics)
        for step in sorted(ours):
            if ours[step] != theirs.get(step):
                raise replay_differs(
                    step - 1,
                    f"gave {json.dumps(ours[step])} where the training had "
                    f"{json.dumps(theirs.get(step))}",
                )


def replay_differs(step: int, how: str) -> ConfigError:
    """The error of a replay whose step is not the training's."""
    return ConfigError(
        "replay of step",
        step,
        f"{how}; train and replay on the same machine with the same versions and number of threads",
    )


def _check_one_layout(metrics: Path, last: int) -> None:
    """Refuses a training that went on on other ranks before step `last`: nothing repeats its bits.

    Steps from the start to that place are repeated.
    """
    for line in read_rows(metrics, MetricsLine):
        if OTHER_RANKS in line.metrics and line.step <= last:
            raise ConfigError(
                "replay of step",
                last,
                f"the training went on at step {line.step} on another number of ranks "
                f"({line.metrics[OTHER_RANKS]:g}), so that no run repeats its bits; replay steps "
                f"before {line.step}, or train again with --fresh",
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


def _state(states: Path, step: int) -> Path:
    return states / f"step-{step:08d}"


def segment_steps(moved: Path, steps: int, disk_bytes: int, *, every: int = 1) -> int:
    """How many steps a segment has, of which one in `every` is recorded.

    The most with which its records and the states of all segments fit into so many bytes; where
    nothing fits, as many as need the fewest bytes.

    **Arguments:** `moved`: folder of the weights that the training moved.
    """
    size = sum(file.stat().st_size for file in moved.glob("*.safetensors"))
    needed = {
        segment: size * (COPIES * -(-segment // every) + STATE_COPIES * ((steps - 1) // segment))
        for segment in range(1, max(steps, 1) + 1)
    }
    fitting = [segment for segment, size in needed.items() if size <= disk_bytes]
    return max(fitting) if fitting else min(needed, key=needed.__getitem__)
