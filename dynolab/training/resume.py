"""Resume states: everything a run needs to continue exactly where it stopped."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.training.engine import Engine
from dynolab.training.examples import Source
from dynolab.training.job import TrainJob

log = logging.getLogger(__name__)

CARRIED = ("metrics.jsonl", "probes.jsonl", "ledger.jsonl", "forces", "best")
"""Results so far, copied into the state so that a resumed run's results are complete."""


ARRIVE_SECONDS = 90.0
"""Longer than NFS may hide other hosts' new files (nfs(5), acdirmax: a minute)."""

FREE = {
    "steps",
    "probe_every",
    "probe_batch_tokens",
    "checkpoint_every",
    "record_steps",
    "keep_steps",
    "alarm",
    "ledger",
}
"""Settings that may differ in a resumed run: they change none of the updates done before."""

LAYOUT = {
    "engine.kind",
    "engine.ranks",
    "engine.zero_stage",
    "engine.offload",
    "micro_batch_size",
}
"""Settings that may differ, too: in which parts a step is computed. Its sums round differently."""


class StateFacts(BaseModel):
    """The training that a resume state belongs to; `inputs` are its input files' sha256."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    step: int
    ranks: int
    threads: int
    settings: dict[str, Any]
    inputs: dict[str, str]

    @classmethod
    def of(cls, job: TrainJob, step: int) -> StateFacts:
        """Collects the facts of a job after `step` optimizer steps, on rank 0."""
        return cls(
            step=step,
            ranks=distributed.world_size(),
            threads=torch.get_num_threads(),
            settings=job.config.model_dump(mode="json", exclude=FREE),
            inputs=job.input_digests(),
        )

    def parted_differently(self, job: TrainJob) -> bool:
        """Whether the job computes a step in other parts than the training of the state did."""
        before, now = _flat(self.settings), _flat(job.config.model_dump(mode="json"))
        return any(before.get(name) != now.get(name) for name in LAYOUT)


def save_state(engine: Engine, source: Source, step: int, job: TrainJob) -> None:
    """Writes a resume state; renames it to its final name when every rank is done.

    Every rank writes its shard of weights and optimizer state (`engine/shard-<rank>`) and its
    random states; the commit hashes each. If the disk is full, training goes on without the state.
    """
    folder = job.resume_out / f"step-{step:08d}"
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if distributed.rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
    distributed.barrier()
    errors = distributed.gather(_write_part(engine, source, step, job, unfinished))
    parts = distributed.gather(_sizes(unfinished))
    if distributed.rank() != 0:
        return
    error = next(filter(None, errors), None) or _await_parts(parts, unfinished)
    if error is None:
        unfinished.rename(folder)
        return
    shutil.rmtree(unfinished, ignore_errors=True)
    log.warning("training goes on without a resume state of step %d: %s", step, error)


def _write_part(
    engine: Engine, source: Source, step: int, job: TrainJob, folder: Path
) -> str | None:
    """Writes this rank's part; returns the error message if the disk fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        engine.save(folder / "engine")
        source.save(step, folder / "source")
        _save_random(folder / f"random-{distributed.rank()}")
        if distributed.rank() == 0:
            for name in CARRIED:
                _copy(job.output / name, folder / "output" / name, copy=link_or_copy)
            (folder / "state.json").write_text(StateFacts.of(job, step).model_dump_json(indent=1))
    except (OSError, SafetensorError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _sizes(folder: Path) -> dict[str, int]:
    """Sizes in bytes of the files below a folder, as this host sees them."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


def _await_parts(parts: Sequence[dict[str, int]], folder: Path) -> str | None:
    """Waits until this host sees all files of all ranks; returns an error message if it times out.

    Ranks on other hosts write through a network file system, which may hide new files for a while;
    without the wait an incomplete state could be committed.
    """
    written: dict[str, int] = {}
    for name, size in chain.from_iterable(part.items() for part in parts):
        written[name] = max(size, written.get(name, 0))  # ranks may see stale sizes
    deadline = time.monotonic() + ARRIVE_SECONDS
    while missing := sorted(written.items() - _sizes(folder).items()):
        if time.monotonic() > deadline:
            return f"{missing[0][0]}, written on another host, is still not visible on this one"
        time.sleep(0.1)
    return None


def load_state(engine: Engine, source: Source, folder: Path, job: TrainJob) -> StateFacts:
    """Loads a resume state, of any number of ranks; returns its facts.

    **Raises:** `ConfigError` for the state of another training.
    """
    facts = distributed.rank_zero_first(lambda: _checked_facts(folder, job))
    engine.load(folder / "engine")
    source.load(facts.step, folder / "source")
    # Nothing in a training draws from these numbers; a further rank takes another one's.
    _load_random(folder / f"random-{distributed.rank() % facts.ranks}")
    if distributed.rank() == 0:
        for name in CARRIED:
            _copy(folder / "output" / name, job.output / name)
    distributed.barrier()
    if facts.threads != torch.get_num_threads():
        log.warning(
            "this run computes on %d threads and the run before on %d: "
            "sums may round differently, so the last bits may differ",
            torch.get_num_threads(),
            facts.threads,
        )
    if facts.parted_differently(job):
        log.warning(
            "step %d was reached on %d ranks and the training goes on on %d: sums round "
            "differently, so the result equals that of one number of ranks up to rounding",
            facts.step,
            facts.ranks,
            distributed.world_size(),
        )
    return facts


def _checked_facts(folder: Path, job: TrainJob) -> StateFacts:
    """Reads a state's facts; on rank 0 raises ConfigError unless they match the job."""
    try:
        facts = StateFacts.model_validate_json((folder / "state.json").read_text())
    except (OSError, ValidationError) as error:
        raise ConfigError(
            "resume_from",
            str(folder),
            "holds no resume state that this version can read; start anew",
        ) from error
    if distributed.rank() != 0:
        return facts
    stored, requested = _named(facts), _named(StateFacts.of(job, facts.step))
    # Shared fields first: report a changed objective name before settings that only one side has.
    names = sorted(
        (stored.keys() | requested.keys()) - LAYOUT,
        key=lambda n: (n not in stored or n not in requested, n),
    )
    for name in names:
        if stored.get(name) != requested.get(name):
            raise ConfigError(
                name,
                requested.get(name),
                f"the resume state belongs to a training with {stored.get(name)!r}; "
                "resume with that, or start anew",
            )
    return facts


def _named(facts: StateFacts) -> dict[str, Any]:
    """Settings by dotted name, and the inputs' digests."""
    return {f"input {name}": digest for name, digest in facts.inputs.items()} | _flat(
        facts.settings
    )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = list(settings.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(f"{name}.{key}", inner) for key, inner in value.items()]
        else:
            flat[name] = value
    return flat


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-links a file that is never rewritten, to save space; copies it if links fail."""
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(source, target)


def _copy(source: Path, target: Path, copy: Callable[[str, str], object] = shutil.copyfile) -> None:
    """Copies a file, or a folder using `copy` for its files; ignores a missing source."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    elif source.exists():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, target)


def _save_random(stem: Path) -> None:
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    save_file(tensors, stem.with_suffix(".safetensors"))
    kind, keys, *rest = np.random.get_state(legacy=True)
    version, state, gauss = random.getstate()
    numpy_state = [kind, keys.tolist(), *rest]  # type: ignore[union-attr]
    stem.with_suffix(".json").write_text(
        json.dumps({"numpy": numpy_state, "python": [version, list(state), gauss]})
    )


def _load_random(stem: Path) -> None:
    tensors = load_file(stem.with_suffix(".safetensors"))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    states = json.loads(stem.with_suffix(".json").read_text())
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys), *rest))
    version, state, gauss = states["python"]
    random.setstate((version, tuple(state), gauss))
