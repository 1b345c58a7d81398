"""A small training of every objective, in each form that has arithmetic of its own."""

from __future__ import annotations

from typing import Any

from dynolab.objectives.registry import RowConfig
from dynolab.training.config import GroupTrainConfig, TrainConfig
from tests.objectives.registered import REQUIRED, defaults
from tests.training.small import group_settings, settings

ON_ROWS: dict[str, dict[str, Any]] = {
    name: {"name": name} | REQUIRED.get(type(config), {})
    for name, config in defaults(RowConfig).items()
} | {
    "sft token mean": {"name": "sft", "normalise": "token_mean"},
    "dpo designed": {"name": "dpo", "designed_dose": {"per": "batch", "sample": 5}},
    "dpo designed by pair": {"name": "dpo", "designed_dose": {"per": "pair", "sample": 5}},
    "dpo calibrated": {"name": "dpo", "calibrated": True},
    "dpo logits sam": {"name": "dpo", "logits_sam": 0.05},
    "ipo mean": {"name": "ipo", "normalise": "mean"},
    "ipo designed by token": {"name": "ipo", "designed_dose": {"per": "token", "sample": 5}},
    "sppo soft": {"name": "sppo", "beta": 0.1, "labels": "soft"},
}
ON_GROUPS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo", "aggregation": "grpo", "kl": 0.05},
    "grpo bnpo": {"name": "grpo", "aggregation": "bnpo"},
    "grpo dr_grpo": {"name": "grpo", "aggregation": "dr_grpo", "max_tokens": 6},
    "grpo dapo": {"name": "grpo", "aggregation": "dapo"},
    "rloo": {
        "name": "grpo",
        "ratio": "product",
        "scale_by_std": False,
        "leave_one_out": True,
        "kl_in_reward": 0.05,
    },
    "grpo entropy": {"name": "grpo", "entropy": 0.1},
    "grpo sequence ratio": {"name": "grpo", "ratio": "sequence", "aggregation": "grpo"},
    **{
        f"grpo {rule}": {"name": "grpo", "advantage_rule": {"name": rule}}
        for rule in ("nthr", "thr", "positives_only", "random_tokens")
    },
    "grpo clipped by score": {
        "name": "grpo",
        "advantage_rule": {"name": "clip_v", "deviations": 0.5},
        "kl_cov": {"share": 0.1},
    },
    "grpo designed": {"name": "grpo", "designed_dose": {"per": "group"}},
    "grpo designed by entropy": {
        "name": "grpo",
        "designed_dose": {"per": "token", "protect": "entropy"},
    },
    "simko": {"name": "simko", "share": 0.2},
    "online dpo": {"name": "dpo"},
    "online ipo": {"name": "ipo"},
    "online sft": {"name": "sft"},
    "online sppo": {"name": "sppo", "beta": 0.1, "labels": "soft"},
    "spin": {"name": "spin"},
}


def small_training(name: str, **changes: Any) -> TrainConfig | GroupTrainConfig:
    """Settings of the named objective's training, with two micro-batches a step.

    Groups come in rollouts of three steps.
    """
    if name in ON_ROWS:
        if "logits_sam" in ON_ROWS[name]:  # its steps have no forces
            changes = {"record_steps": []} | changes
        return settings(objective=ON_ROWS[name], **{"micro_batch_size": 4} | changes)
    rollout = {"updates_per_rollout": 3, "checkpoint_every": 1}
    return group_settings(objective=ON_GROUPS[name], **rollout | changes)
