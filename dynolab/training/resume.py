"""Resume states: everything a run needs to continue as if it had never stopped."""

from __future__ import annotations

import json
import logging
import random
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dynolab import distributed
from dynolab.training.engine import Engine

log = logging.getLogger(__name__)

CARRIED = ("metrics.jsonl", "probes.jsonl", "forces")
"""Results so far, kept with the state so that a resumed run's results are whole."""


def save_state(engine: Engine, step: int, output: Path, folder: Path) -> None:
    """Writes a resume state; it appears under its final name only when every rank is done."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if distributed.rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
    distributed.barrier()
    engine.save(unfinished / "engine")
    _save_random(unfinished / f"random-{distributed.rank()}")
    if distributed.rank() == 0:
        for name in CARRIED:
            _copy(output / name, unfinished / "output" / name)
        facts = {"step": step, "ranks": distributed.world_size(),
                 "threads": torch.get_num_threads()}  # fmt: skip
        (unfinished / "state.json").write_text(json.dumps(facts))
    distributed.barrier()
    if distributed.rank() == 0:
        unfinished.rename(folder)


def load_state(engine: Engine, folder: Path, output: Path) -> int:
    """Reads a resume state; returns how many steps had been done."""
    engine.load(folder / "engine")
    _load_random(folder / f"random-{distributed.rank()}")
    if distributed.rank() == 0:
        for name in CARRIED:
            _copy(folder / "output" / name, output / name)
    distributed.barrier()
    facts = json.loads((folder / "state.json").read_text())
    if facts["threads"] != torch.get_num_threads():
        log.warning(
            "this run computes on %d threads and the one before did on %d: "
            "sums may round otherwise, so the last bits may differ",
            torch.get_num_threads(), facts["threads"],
        )  # fmt: skip
    return int(facts["step"])


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
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
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    version, state, gauss = states["python"]
    random.setstate((version, tuple(state), gauss))
