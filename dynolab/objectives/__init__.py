"""Objectives: one small class per loss, used both for training and for analysis.

To add one, write a file here with a config and a class as in `simpo.py`, and register it in
`registry.py`, where the trainer, the force engine and the forms find it.

A loss on pairs of answers is three short methods on `PairObjective`; a policy gradient on groups
of sampled completions reads what `dynolab.data.groups` puts into its batch.
"""

from dynolab.objectives.advantages import AdvantageRuleConfig, group_advantages, rewrite_advantages
from dynolab.objectives.base import Objective, force, read_logps, target_force
from dynolab.objectives.dpo import DPO, DPOConfig, RobustDPO, RobustDPOConfig
from dynolab.objectives.grpo import GRPO, GRPOConfig
from dynolab.objectives.hinge import Hinge, HingeConfig, SLiC, SLiCConfig
from dynolab.objectives.ipo import IPO, IPOConfig
from dynolab.objectives.registry import (
    GroupObjectiveConfig,
    ObjectiveConfig,
    RowObjectiveConfig,
    build_objective,
)
from dynolab.objectives.sft import SFT, SFTConfig, SFTExtended, SFTExtendedConfig
from dynolab.objectives.simko import SimKO, SimKOConfig
from dynolab.objectives.simpo import SimPO, SimPOConfig
from dynolab.objectives.spin import SPINConfig
from dynolab.objectives.sppo import SPPO, SPPOConfig

__all__ = [
    "DPO",
    "GRPO",
    "IPO",
    "SFT",
    "SPPO",
    "AdvantageRuleConfig",
    "DPOConfig",
    "GRPOConfig",
    "GroupObjectiveConfig",
    "Hinge",
    "HingeConfig",
    "IPOConfig",
    "Objective",
    "ObjectiveConfig",
    "RobustDPO",
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
