"""The same batches by ZeRO-1 and ZeRO-2, accounted for and not; started by `torchrun`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import Trainer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from dynolab import distributed
from dynolab.forces.ledger import pass_again
from dynolab.forces.ledger.forwards import Forward
from dynolab.forces.ledger.trainer_passes import TrainerPasses
from dynolab.integrations import forces
from dynolab.integrations.forces import ForceCallback
from dynolab.training.deepspeed_engine import init_ranks
from tests.integrations.callback_fsdp import SLICE
from tests.integrations.test_trained import SGD, dpo

LORA = LoraConfig(r=1, target_modules="all-linear")
CASES: dict[str, dict[str, Any]] = {
    "stage-1": {"stage": 1, **SGD},
    "stage-2": {"stage": 2, **SGD},
    "accumulated": {"stage": 2, "gradient_accumulation_steps": 2, **SGD},
    "adamw": {"stage": 1, "weight_decay": 0.1},
    "offloaded": {"stage": 2, "offload": "cpu", "weight_decay": 0.1},
    "lora": {"stage": 2, "peft": LORA},
    "bf16": {"stage": 2, "bf16": True},
    "stage-3": {"stage": 3, **SGD},
    "stage-3-adamw": {"stage": 3, "weight_decay": 0.1},
    "stage-3-accumulated": {"stage": 3, "gradient_accumulation_steps": 2, **SGD},
    "stage-3-lora": {"stage": 3, "peft": LORA},
    "stage-3-bf16": {"stage": 3, "bf16": True},
}


def trainer_of(folder: Path, stage: int, offload: str = "none", **more: Any) -> Trainer:
    unset_hf_deepspeed_config()  # else the next model is made in parts, of other random numbers
    micro_steps = more.get("gradient_accumulation_steps", 1)
    zero: dict[str, Any] = {
        "stage": stage,
        "offload_optimizer": {"device": offload},
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    return dpo(
        folder,
        per_device_train_batch_size=4 // distributed.world_size() // micro_steps,
        max_steps=2,
        deepspeed={
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        },
        **more,
    )


def train(folder: Path, watched: bool, **settings: Any) -> str:
    """Why the callback gave up."""
    trainer = trainer_of(folder, **settings)
    forces = ForceCallback(trainer, every=1)
    if watched:
        trainer.add_callback(forces)
    trainer.train()
    assert trainer.state.global_step == 2
    assert "step" not in vars(trainer.model_wrapped)
    trainer.save_model(str(folder / "model"))
    return forces.off


class FailsOnOneRank(TrainerPasses):
    def made(self) -> list[Forward]:
        if distributed.rank() == 1:
            raise ZeroDivisionError
        return super().made()


if __name__ == "__main__":
    init_ranks()
    gc.freeze()  # accelerate collects garbage after each training, and would look at every module
    pass_again.SLICE = SLICE
    inputs = Path(sys.argv[1])
    forces.TrainerPasses = FailsOnOneRank  # type: ignore[misc]
    assert "ZeroDivisionError" in train(inputs / "failed" / "watched", True, **CASES["stage-2"])
    forces.TrainerPasses = TrainerPasses  # type: ignore[misc]
    for name, settings in CASES.items():
        assert train(inputs / name / "watched", True, **settings) == ""
        train(inputs / name / "alone", False, **settings)
    distributed.leave()
