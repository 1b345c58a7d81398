"""Objectives: one small object per loss that both trains and is analysed.

To add one: write a file here with a config and a class as in `dpo.py`, and name it in
`registry.py`. The trainer, the force engine and the forms take it from there.
"""

from dynolab.objectives.base import Objective
from dynolab.objectives.dpo import DPO, DPOConfig
from dynolab.objectives.registry import ObjectiveConfig, build_objective
from dynolab.objectives.sft import SFT, SFTConfig

__all__ = [
    "DPO",
    "SFT",
    "DPOConfig",
    "Objective",
    "ObjectiveConfig",
    "SFTConfig",
    "build_objective",
]
