"""Objectives: one small class per loss, used both for training and for analysis.

To add one, write a file here with a config and a class, as SimPO in `pair_losses.py`, and register
it in `registry.py`, where the trainer, the force engine and study files find it.

A loss on pairs of answers is one short method on `PairObjective`, or a function of one's own
(`Custom`); a policy gradient on groups of sampled completions reads what `dynolab.data.groups`
puts into its batch. A loss's force is its gradient by the log-probabilities (`Objective`).
"""

from dynolab.objectives.base import Objective, force, read_logps, target_force
from dynolab.objectives.dpo import DPO, DPOConfig, HingeConfig, RobustDPOConfig, SPINConfig
from dynolab.objectives.grpo import GRPO, GRPOConfig, SimKO, SimKOConfig
from dynolab.objectives.pair_losses import (
    CPO,
    IPO,
    ORPO,
    SPPO,
    CPOConfig,
    Custom,
    CustomConfig,
    IPOConfig,
    ORPOConfig,
    SimPO,
    SimPOConfig,
    SLiC,
    SLiCConfig,
    SPPOConfig,
)
from dynolab.objectives.pairs import Answers
from dynolab.objectives.policy_gradient import (
    AdvantageRuleConfig,
    group_advantages,
    rewrite_advantages,
)
from dynolab.objectives.registry import (
    GroupObjectiveConfig,
    ObjectiveConfig,
    RowObjectiveConfig,
    build_objective,
)
from dynolab.objectives.sft import KTO, SFT, KTOConfig, SFTConfig, SFTExtended, SFTExtendedConfig

__all__ = [
    "CPO",
    "DPO",
    "GRPO",
    "IPO",
    "KTO",
    "ORPO",
    "SFT",
    "SPPO",
    "AdvantageRuleConfig",
    "Answers",
    "CPOConfig",
    "Custom",
    "CustomConfig",
    "DPOConfig",
    "GRPOConfig",
    "GroupObjectiveConfig",
    "HingeConfig",
    "IPOConfig",
    "KTOConfig",
    "ORPOConfig",
    "Objective",
    "ObjectiveConfig",
    "RobustDPOConfig",
    "RowObjectiveConfig",
    "SFTConfig",
    "SFTExtended",
    "SFTExtendedConfig",
    "SLiC",
    "SLiCConfig",
    "SPINConfig",
    "SPPOConfig",
    "SimKO",
    "SimKOConfig",
    "SimPO",
    "SimPOConfig",
    "build_objective",
    "force",
    "group_advantages",
    "read_logps",
    "rewrite_advantages",
    "target_force",
]
