"""What a training writes to disk and what stays in the store, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dynolab.costs.memory import FP32, states
from dynolab.costs.shape import ModelShape
from dynolab.training.config import LoopConfig

SCORE_BYTES = 240
"""A probe row's line in `probes.jsonl`. Measured: `store_plan_error` of `tests.benchmarks.size`."""


PAGE_BYTES = 1_500_000
"""A study's page and figures without plotly's library. Measured as `SCORE_BYTES` is."""


@dataclass(frozen=True)
class DiskBytes:
    """`written` in all; `stored`: what stays in the store when the stage has ended."""

    written: int
    stored: int


def model_bytes(shape: ModelShape) -> int:
    """A saved model: `4 N`, in fp32, adapters merged."""
    return FP32 * shape.parameters


def record_bytes(config: LoopConfig, shape: ModelShape, step: int) -> int:
    """The tensors of a recorded step: weights before and after and s optimizer states,
    `4 T (2 + s)`; before the first step there are no states. They lie in this machine's cache."""
    return FP32 * shape.trained * (2 + (states(config.optimizer) if step else 0))


def state_bytes(config: LoopConfig, shape: ModelShape) -> int:
    """A resume state of all ranks: `4 T (1 + s)`. It is deleted when training has ended."""
    return FP32 * shape.trained * (1 + states(config.optimizer))


def training_disk(
    config: LoopConfig, shape: ModelShape, *, probe_rows: int, tokenizer: int
) -> DiskBytes:
    """A training's model with its tokenizer of so many bytes, scores, records and resume states.

    Checked: `store_plan_error` of `tests.benchmarks.size`.
    """
    probes = sum(config.probes_at(step) for step in range(config.steps + 1))
    stored = model_bytes(shape) + tokenizer + probes * probe_rows * SCORE_BYTES
    saved = (config.steps - 1) // config.checkpoint_every if config.checkpoint_every else 0
    records = sum(record_bytes(config, shape, step) for step in config.record_steps)
    return DiskBytes(
        written=stored + records + saved * 2 * state_bytes(config, shape), stored=stored
    )


def page_bytes() -> int:
    """A study's page with its figures; plotly's library is in the page, and beside the figures."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        return PAGE_BYTES
    library = Path(found.origin).parent / "package_data" / "plotly.min.js"
    return 2 * library.stat().st_size + PAGE_BYTES
