"""The share of a training's time that callbacks take, beside the one that they are asked to."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from tests.integrations.test_trained import dpo

SHARE, LONG = 0.1, 25
"""The share asked for; a training lasts so many times as long as its first account."""

SIZES: dict[str, dict[str, int]] = {
    "656k": {"vocab_size": 1280, "hidden_size": 128, "num_hidden_layers": 2},
    "3m": {"vocab_size": 4096, "hidden_size": 192, "num_hidden_layers": 4},
    "70m": {"vocab_size": 50_304, "hidden_size": 512, "num_hidden_layers": 6},
}
EVENTS = (
    "on_train_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_train_end",
)


def model(size: str) -> PreTrainedModel:
    width = SIZES[size]["hidden_size"]
    shape = {"intermediate_size": 2 * width, "num_attention_heads": 4, **SIZES[size]}
    return AutoModelForCausalLM.from_config(LlamaConfig(**shape)).float()


class Clock(TrainerCallback):
    """Times the events of other callbacks, and ends a training that is long enough.

    **Arguments:** `watched`: by name.
    """

    def __init__(self, **watched: TrainerCallback) -> None:
        self.took = dict.fromkeys(watched, 0.0)
        self.plain, self._first = 0.0, 0.0
        self._began = time.perf_counter()
        for name, callback in watched.items():
            for event in EVENTS:
                setattr(callback, event, self._timed(name, getattr(callback, event)))

    def on_train_begin(self, *arguments: Any, **named: Any) -> None:
        """Starts; it is the first callback."""
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Ends the training."""
        self.plain = time.perf_counter() - self._began - sum(self.took.values())
        self._first = self._first or self.took["forces"]
        if self.plain > LONG * self._first:
            control.should_training_stop = True

    def _timed(self, name: str, event: Callable[..., None]) -> Callable[..., None]:
        @wraps(event)
        def timed(*arguments: Any, **named: Any) -> None:
            began = time.perf_counter()
            event(*arguments, **named)
            self.took[name] += time.perf_counter() - began

        return timed


def shares(folder: Path, size: str) -> dict[str, float]:
    """Seconds of each callback over those of the training without them and the share asked for."""
    trainer = dpo(folder, model=model(size), max_steps=100_000, max_length=48, logging_steps=1000)
    trainer.remove_callback(PrinterCallback)
    callbacks = {"forces": ForceCallback(trainer), "probes": ProbeCallback(trainer)}
    clock = Clock(**callbacks)
    for callback in (clock, *callbacks.values()):
        trainer.add_callback(callback)
    trainer.train()
    assert not any(callback.off for callback in callbacks.values())
    return {name: took / clock.plain / SHARE for name, took in clock.took.items()}


def measure(home: Path) -> dict[str, float]:
    """`share_kept_…` and `probe_share_kept_…` by the number of weights."""
    found = {}
    for size in SIZES:
        share = shares(home / size, size)
        found |= {
            f"share_kept_{size}": share["forces"],
            f"probe_share_kept_{size}": share["probes"],
        }
    return found
