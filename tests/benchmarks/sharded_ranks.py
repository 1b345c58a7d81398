"""Trainers over ranks, accounted for or not, as accelerate's configurations start them.

    python -m torch.distributed.run --nproc-per-node=2 -m tests.benchmarks.sharded_ranks FOLDER

In FOLDER/plan.json: `strategy`, one of `STRATEGIES`; and either `large`, a model's folder, with
`watched`, for which each rank writes the most memory that its process took beside what it had taken
before; or nothing more, for accounts of tiny models, by objective and optimizer.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import AutoModelForCausalLM, Trainer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from dynolab import distributed
from dynolab.integrations.forces import ForceCallback
from dynolab.training.deepspeed_engine import init_ranks
from tests.integrations.callback_fsdp import sharded
from tests.integrations.test_forces import sft
from tests.integrations.test_trained import dpo

# Adam divides by what a gradient was: where it is rounding alone, ε decides and not the ranks.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "optim": "sgd", "optim_args": "momentum=0.9"},
    "adamw": {"learning_rate": 0.1, "weight_decay": 0.1, "adam_epsilon": 1e-2},
}
MAKERS = {"sft": sft, "dpo": dpo}
STRATEGIES = ("single", "ddp", "fsdp2", "zero2", "zero3")


def deepspeed(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage},
    }


def small(folder: Path, more: dict[str, Any]) -> None:
    """Accounts of two steps on four rows each."""
    each = 4 // int(os.environ["WORLD_SIZE"])
    for objective, make in MAKERS.items():
        for optimizer, settings in OPTIMIZERS.items():
            unset_hf_deepspeed_config()  # else the next model is made in parts
            at = folder / f"{objective}-{optimizer}"
            trainer = make(
                at, per_device_train_batch_size=each, max_steps=2, max_length=14, **settings, **more
            )
            forces = ForceCallback(trainer, every=1)
            trainer.add_callback(forces)
            trainer.train()
            assert trainer.state.global_step == 2
            assert forces.off == "", forces.off


def large(folder: Path, plan: dict[str, Any], more: dict[str, Any]) -> None:
    """One step of a large model."""
    ids = [[(7 * row + place) % 1000 for place in range(128)] for row in range(8)]
    rows = Dataset.from_dict({"input_ids": ids, "labels": ids, "attention_mask": [[1] * 128] * 8})
    had = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = AutoModelForCausalLM.from_pretrained(plan["large"])
    trainer: Trainer = sft(folder, max_steps=2, **more)
    trainer = type(trainer)(
        model,
        args=trainer.args,
        train_dataset=rows,
        processing_class=trainer.processing_class,
    )
    if plan["watched"]:
        trainer.add_callback(forces := ForceCallback(trainer, every=1, pairs=2))
    trainer.train()
    assert not plan["watched"] or forces.off == "", forces.off
    took = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - had
    (folder / f"took-{distributed.rank()}").write_text(str(took * 1024))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    plan = json.loads((folder / "plan.json").read_text())
    more: dict[str, Any] = {}
    if plan["strategy"] == "fsdp2":
        AcceleratorState.__init__ = sharded  # type: ignore[method-assign]
    elif plan["strategy"].startswith("zero"):
        init_ranks()
        more["deepspeed"] = deepspeed(int(plan["strategy"][-1]))
    if "large" in plan:
        large(folder, plan, more)
    else:
        small(folder, more)
    distributed.leave()
