"""Callbacks in trainers of transformers and TRL that train on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from transformers import Trainer

from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from tests.integrations.test_callback import SHARED, adapted, dpo, plain, probes
from tests.integrations.test_forces import grpo, sft

MakeTrainer = Callable[[Path], Trainer]


def probe_trainer(make: MakeTrainer, folder: Path) -> None:
    SHARED["use_cpu"] = False
    trainer = make(folder)
    trainer.add_callback(ProbeCallback(trainer, probes(), every=2))
    trainer.train()


def account_for_trainer(make: MakeTrainer, folder: Path) -> None:
    SHARED["use_cpu"] = False
    trainer = make(folder)
    trainer.add_callback(ForceCallback(trainer, probes(), every=2))
    trainer.train()


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    for make in (plain, dpo, adapted):
        yield f"probes in trainer {make.__name__}", partial(probe_trainer, make)
    for make in (sft, dpo, grpo):
        yield f"forces in trainer {make.__name__}", partial(account_for_trainer, make)
