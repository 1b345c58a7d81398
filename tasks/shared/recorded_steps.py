"""Recorded steps of a training: from this machine's cache, else from a replay of the training."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from dynolab.errors import ConfigError
from dynolab.store import Manifest
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.step_record import RecordCache, StepRecord
from tasks.runtime.work import Work
from tasks.shared.replay import Replay, replay_differs
from tasks.training import RECORDS

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


def _replayed(
    work: Work[Any], name: str, folders: Sequence[Path], cache: RecordCache
) -> Iterator[StepRecord]:
    replay = _replay(work, name)
    log.info("%s: recorded steps are not in this machine's cache, so it is trained again", name)
    with TemporaryDirectory(prefix="replay-", dir=work.scratch) as scratch:
        output = Path(scratch)
        replay.run(output, [int(folder.name.removeprefix("step-")) for folder in folders])
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
        model=_read_by(work, name, manifest, "model") / "model",
        examples=_read_by(work, name, manifest, "prompts" if on_groups else "data") / "train.jsonl",
        metrics=work.input_folder(name) / "metrics.jsonl",
    )


def _read_by(work: Work[Any], name: str, manifest: Manifest, role: str) -> Path:
    """Folder of what a training read as its input `role`; some input of `work` has its content."""
    digest = manifest.parents[role]
    for own, source in work.inputs.items():
        if source.digest == digest:
            return work.input_folder(own)
    raise ConfigError(
        name,
        work.inputs[name].address,
        "the tensors of its recorded steps are not in this machine's cache, and to train it again "
        f"its input {role} is missing; run the flow that trained it again, with --fresh",
    )
