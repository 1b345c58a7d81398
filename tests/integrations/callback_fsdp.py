"""Trainers whose weights FSDP2 shards, watched and not; started by `torchrun`.

accelerate shards on GPUs alone by itself.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from peft import LoraConfig
from torch.distributed.fsdp import FSDPModule
from transformers import Trainer

from dynolab import distributed
from dynolab.forces.ledger import pass_again
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from tests.integrations.test_callback import plain, probes
from tests.integrations.test_forces import grpo
from tests.integrations.test_trained import SGD, dpo

INIT = AcceleratorState.__init__


def sharded(self: AcceleratorState, *arguments: Any, **named: Any) -> None:
    INIT(self, *arguments, **named)
    self.distributed_type = DistributedType.FSDP
    self.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="FULL_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )


CASES: dict[str, dict[str, Any]] = {
    "sgd": SGD,
    "accumulated": {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, **SGD},
    "adamw": {"weight_decay": 0.1},
    "tied": {"family": "gemma3", **SGD},
    "lora": {"peft": LoraConfig(r=1, target_modules="all-linear")},
    "bf16": {"bf16": True},
}

FEW: dict[str, Any] = {"kinds": ("chosen",), "pairs": 1}
"""One answer, which one of two ranks reads, of a tied weight."""
SLICE = 1000
"""Numbers of a weight that are taken at once: fewer than tiny weights have."""


def accounted(folder: Path, **settings: Any) -> Trainer:
    """DPO on batches of four pairs over all ranks."""
    each = 4 // int(os.environ["WORLD_SIZE"]) // settings.get("gradient_accumulation_steps", 1)
    return dpo(folder, per_device_train_batch_size=each, max_steps=2, **settings)


OTHERS: dict[str, Callable[[Path], Trainer]] = {"plain": plain, "grpo": grpo}
DPO = {name: partial(accounted, **settings) for name, settings in CASES.items()}


def train(folder: Path, make: Callable[[Path], Trainer], watched: bool) -> None:
    trainer = make(folder)
    probed = ProbeCallback(trainer, probes(), every=2)
    watching = FEW if make is DPO["tied"] else {}
    rows = probes() if make in OTHERS.values() else None
    forces = ForceCallback(trainer, rows, every=1, **watching)
    if watched:
        trainer.add_callback(probed)
        trainer.add_callback(forces)
    trainer.train()
    assert probed.off == forces.off == ""
    assert isinstance(trainer.accelerator.unwrap_model(trainer.model), FSDPModule)
    trainer.save_model(str(folder / "model"))


if __name__ == "__main__":
    gc.freeze()  # accelerate collects garbage after each training, and would look at every module
    AcceleratorState.__init__ = sharded  # type: ignore[method-assign]
    pass_again.SLICE = SLICE
    for name, make in (OTHERS | DPO).items():
        for watched in (True, False):
            train(Path(sys.argv[1], name, "watched" if watched else "alone"), make, watched)
    distributed.leave()
