"""The record of one optimizer step, to replay it, and a bounded cache of records' tensors."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.data.rows import json_lines, write_rows
from dynolab.errors import ConfigError
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.store import FileEntry, hash_file
from dynolab.store.manifest import hash_bytes
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_batch import (
    Recorded,
    RecordedExample,
    RecordedGroup,
    read_recorded,
)

SECOND_MOMENT_AFTER = "second_moment_after"

__all__ = [
    "SECOND_MOMENT_AFTER",
    "Recorded",
    "RecordedExample",
    "RecordedGroup",
    "StepFacts",
    "StepRecord",
    "at_least_rounding",
]


class StepFacts(BaseModel):
    """Settings and numbers of a recorded step; `step` counts from 0.

    The gradient was multiplied by `clip_factor`, which keeps its norm within `clip_norm` (None in
    records from before this field); `learning_rate` includes warm-up. `rounded`: the gradient was
    computed in 16 bits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    step: int
    learning_rate: float
    grad_norm: float
    clip_factor: float
    clip_norm: float | None = None
    rounded: bool = False
    objective: ObjectiveConfig
    optimizer: OptimizerConfig


def at_least_rounding(moment: Tensor) -> Tensor:
    """A mean of squared gradients that bf16 has rounded, no less than what its rounding makes.

    An error of ε in gradients is one of ε² in their squares; a gradient that is rounded to nothing
    would have fp32's lines divided by nothing.
    """
    mean = moment.sum() / moment.count_nonzero().clamp(min=1)
    return moment.clamp(min=torch.finfo(torch.bfloat16).eps ** 2 * mean)


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step.

    `before`, `after`: fp32 master weights by parameter name (tied weights once, under their first
    name). `state`: the optimizer's tensors *before* the step by parameter name and torch's own
    state name (`exp_avg`, `exp_avg_sq`, `square_avg`, `momentum_buffer`); empty before a
    stateful optimizer's first step. `SECOND_MOMENT_AFTER` is among them for optimizers that divide
    by one: where it is small, a recomputed gradient cannot give it, as rounding decides it. Under
    bf16 it is at least ε² of the parameter's mean: of a smaller gradient, rounding decides how much
    is left, and to divide by next to nothing would enlarge the examples' fp32 gradients.
    """

    facts: StepFacts
    examples: tuple[Recorded, ...]
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    state: dict[str, dict[str, Tensor]]

    def save(self, folder: Path) -> None:
        """Writes `step.json`, `batch.jsonl` and three safetensors files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "step.json").write_text(self.facts.model_dump_json(indent=1))
        write_rows(folder / "batch.jsonl", self.examples)
        save_file(_contiguous(self.before), folder / "before.safetensors")
        save_file(_contiguous(self.after), folder / "after.safetensors")
        flat = {
            f"{name}|{key}": tensor
            for name, tensors in self.state.items()
            for key, tensor in tensors.items()
        }
        save_file(_contiguous(flat), folder / "optimizer.safetensors")

    def as_gradient_step(self) -> StepRecord:
        """The same batch in a plain gradient step of the same learning rate, with nothing clipped.

        `before` and `after` stay what they were.
        """
        optimizer = OptimizerConfig(name="sgd", learning_rate=self.facts.learning_rate or 1.0)
        plain = {"clip_factor": 1.0, "clip_norm": math.inf, "optimizer": optimizer}
        facts = self.facts.model_copy(update=plain)
        return replace(self, facts=facts, state={})

    def changed(self, **facts_or_batch: Any) -> StepRecord:
        """A step that was not made: what it divides by and clips to follows from its own gradient.

        `before`, `after` and the optimizer's tensors before the step stay what they were.

        **Arguments:** `examples`, or facts such as `objective`.
        """
        examples = facts_or_batch.pop("examples", self.examples)
        bound = self.facts.clip_norm
        if bound is None and self.facts.clip_factor < 1:
            bound = self.facts.clip_factor * self.facts.grad_norm
        unknown = {"clip_factor": math.nan, "clip_norm": bound or math.inf}
        state = {
            name: {key: w for key, w in tensors.items() if key != SECOND_MOMENT_AFTER}
            for name, tensors in self.state.items()
        }
        facts = self.facts.model_copy(update=unknown | facts_or_batch)
        return replace(self, facts=facts, examples=examples, state=state)

    @classmethod
    def load(cls, folder: Path, tensors: Path | None = None) -> StepRecord:
        """Reads a record; tensors are on the CPU.

        **Arguments:** `tensors`: folder of the safetensors files; default: `folder`.

        **Raises** `ConfigError` for a folder of a stage's result, whose tensors are elsewhere.
        """
        if tensors is None:
            if not (folder / "before.safetensors").exists():
                raise ConfigError("record", str(folder), "holds no weights; read it by RecordCache")
            tensors = folder
        state: dict[str, dict[str, Tensor]] = {}
        for flat, tensor in load_file(tensors / "optimizer.safetensors").items():
            name, key = flat.rsplit("|", 1)
            state.setdefault(name, {})[key] = tensor
        return cls(
            facts=StepFacts.model_validate_json((folder / "step.json").read_text()),
            examples=tuple(map(read_recorded, json_lines(folder / "batch.jsonl"))),
            before=load_file(tensors / "before.safetensors"),
            after=load_file(tensors / "after.safetensors"),
            state=state,
        )


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in tensors.items()
    }


log = logging.getLogger(__name__)

TENSORS = "tensors.json"
"""Sizes and hashes of a record's safetensors files, in the place of these files."""

LIMIT_BYTES = 2**36

_FILES = TypeAdapter(dict[str, FileEntry])


def size_of_weights(record: Path) -> int:
    """Bytes of a record's weights before its step, which need not be there."""
    if not (record / TENSORS).exists():
        return (record / "before.safetensors").stat().st_size
    return _FILES.validate_json((record / TENSORS).read_bytes())["before.safetensors"].size


@dataclass(frozen=True)
class RecordCache:
    """Tensors of recorded steps: weights before and after, and the optimizer's.

    A record without its tensors names them by their hashes, so a step that is recorded again has
    either the same tensors or another name. The records that were used longest ago leave first.

    - `folder`: where they lie, a folder for each record.
    - `limit_bytes`: what all of them may take; a record that is larger is not kept.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def take(self, record: Path) -> None:
        """Moves the tensors of a record that `StepRecord.save` wrote here.

        Their sizes and hashes stay with the record.
        """
        tensors = sorted(record.glob("*.safetensors"))
        with ThreadPoolExecutor() as pool:
            entries = pool.map(hash_file, tensors)
        files = dict(zip((file.name for file in tensors), entries, strict=True))
        (record / TENSORS).write_bytes(_FILES.dump_json(files, indent=1))
        place, size = self._place(record), sum(entry.size for entry in files.values())
        if size <= self.limit_bytes and not place.exists():
            self._make_room(size)
            self._move([record / name for name in files], place)
        for name in files:
            (record / name).unlink(missing_ok=True)

    def load(self, record: Path) -> StepRecord | None:
        """Reads a record; None if its tensors are not here, or no longer what they were.

        A record that still has its own tensors is read from its folder.
        """
        if not (record / TENSORS).exists():
            return StepRecord.load(record)
        place = self._place(record)
        files = _FILES.validate_json((record / TENSORS).read_bytes())
        try:
            if all(hash_file(place / name) == entry for name, entry in files.items()):
                os.utime(place)
                return StepRecord.load(record, place)
        except (FileNotFoundError, NotADirectoryError):
            pass  # never here, or deleted by another process to make room
        shutil.rmtree(place, ignore_errors=True)
        return None

    def holds(self, record: Path) -> bool:
        """Whether a record's tensors are here, by their names; `load` compares their contents."""
        if not (record / TENSORS).exists():
            return True
        place = self._place(record)
        files = _FILES.validate_json((record / TENSORS).read_bytes())
        return all((place / name).exists() for name in files)

    def _place(self, record: Path) -> Path:
        return self.folder / hash_bytes((record / TENSORS).read_bytes())

    def _make_room(self, size: int) -> None:
        """Deletes records until one of `size` bytes fits."""
        uses = {path: _use(path) for path in self.folder.glob("*")}
        total = sum(use for _, use in uses.values())
        for path, (_, use) in sorted(uses.items(), key=lambda item: item[1]):
            if total + size <= self.limit_bytes:
                return
            shutil.rmtree(path, ignore_errors=True)
            total -= use

    def _move(self, files: Sequence[Path], place: Path) -> None:
        """Moves files into a new folder; a step that cannot be kept can still be replayed."""
        unfinished = self.folder / uuid4().hex
        try:
            unfinished.mkdir(parents=True)
            for file in files:
                shutil.move(file, unfinished / file.name)
            unfinished.rename(place)
        except OSError as error:
            log.warning("a recorded step could not be cached: %s", error)
            shutil.rmtree(unfinished, ignore_errors=True)


def _use(place: Path) -> tuple[int, int]:
    """When a folder was last used, and its bytes; zeros if another process has deleted it."""
    try:
        return place.stat().st_mtime_ns, sum(file.stat().st_size for file in place.iterdir())
    except FileNotFoundError:
        return 0, 0
