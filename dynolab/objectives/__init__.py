"""Objectives: one small class per loss, used both for training and for analysis.

To add one, write a file here with a config and a class, as SimPO in `pair_losses.py`, and name its
config in `registry.py`, where the trainer, the force engine and study files find it.

A loss on pairs of answers is one short method on `PairObjective`, or a function of one's own
(`Custom`); a policy gradient on groups of sampled completions reads what `dynolab.data.groups`
puts into its batch. A loss's force is its gradient by the log-probabilities (`Objective`).
"""

from dynolab.objectives.advantage_rules import (
    AdvantageRuleConfig as AdvantageRuleConfig,
    rewrite_advantages as rewrite_advantages,
)
from dynolab.objectives.base import (
    Objective as Objective,
    force as force,
    read_logps as read_logps,
    target_force as target_force,
)
from dynolab.objectives.dpo import DPO as DPO
from dynolab.objectives.grpo import GRPO as GRPO, SimKO as SimKO
from dynolab.objectives.pair_losses import SPPO as SPPO, SimPO as SimPO, SLiC as SLiC
from dynolab.objectives.pairs import Answers as Answers
from dynolab.objectives.policy_gradient import group_advantages as group_advantages
from dynolab.objectives.registry import *  # noqa: F403  the settings of every objective
from dynolab.objectives.registry import (
    GroupObjectiveConfig as GroupObjectiveConfig,
    ObjectiveConfig as ObjectiveConfig,
    RowObjectiveConfig as RowObjectiveConfig,
    build_objective as build_objective,
)
from dynolab.objectives.sft import KTO as KTO, SFT as SFT
