"""A comparison of remedies made from a study, which its page offers to run next."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.objectives.designed_dose import DesignedDoseConfig
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.pairs import PairConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.training.config import TrainConfig
from flows.mitigation import MitigationParameters
from tasks.arm import ArmConfig
from tasks.audit import AuditConfig
from tasks.base import BaseConfig
from tasks.filter import FilterConfig

DOSE, DROP, WARMUP = 0.8, 0.3, 5
"""Of the push on rejected answers what is left, of the pairs what is left out, and one in how many
steps warms up.

A much smaller push lets rejected answers rise as fast as chosen ones where the preference is not
learned yet.
"""

_ABOUT = """\
# Made by the study {name}: its preference training as it was; with a smaller push on rejected
# answers (softer); with the largest push, step by step, that to first order lowers no other chosen
# answer (designed); with smaller first steps, where the study has no warm-up (warmed-up); without
# the pairs that an audit says lower the others' chosen answers most (filtered); and, after a study
# with an account, without those that pulled its fallen answers down (without-named). What comes
# before the training has the study's settings. The page follows the fallen answers (follow).
"""


def remedies_file(
    name: str,
    seed: int,
    data: DataConfig,
    base: BaseConfig,
    probe_set: ProbeSetConfig | None,
    sft: TrainConfig | None,
    audit: AuditConfig | None,
    trained: TrainConfig,
) -> str:
    """A study file of `mitigation`; empty for a training that it cannot compare.

    The arms have the study's settings but for the remedy, over the study's seed and the next two.

    **Arguments:** the study's parameters; `trained`: those of its preference training.
    """
    if trained.objective.name not in PAIR_OBJECTIVES:
        return ""
    left_out = {"objective", "seed", "record_steps", "checkpoint_every", "ledger", "alarm", "best"}
    training = trained.model_dump(mode="json", exclude_unset=True, exclude=left_out)
    training["probe_every"] = trained.probe_every or max(1, trained.steps // 10)
    settings: dict[str, Any] = {
        "name": f"{name}-remedies",
        "seeds": [seed, seed + 1, seed + 2],
        "data": _given(data),
        "base": _given(base),
        **({} if probe_set is None else {"probe_set": _given(probe_set)}),
        "sft": None if sft is None else _given(sft),
        "training": training,
        "audit": _given(audit or AuditConfig()),
    }
    if not data.states_facts:
        settings["judge"] = {"name": "log_prob"}
        settings["answers"] = {"prompts": 40, "samples": 1}
    # The arms come last, so that the study's report can add one.
    settings["arms"] = {label: _given(arm) for label, arm in _arms(trained).items()}
    try:
        MitigationParameters.model_validate(settings)
    except (ConfigError, ValidationError):
        return ""  # what a comparison refuses is no fault of the study
    return _ABOUT.format(name=name) + yaml.safe_dump(settings, sort_keys=False)


def _given(config: BaseModel) -> dict[str, Any]:
    """The settings that the study gives."""
    return config.model_dump(mode="json", exclude_unset=True)


def _arms(trained: TrainConfig) -> dict[str, ArmConfig]:
    objective: Any = trained.objective
    gentler: dict[str, Any] = {}
    if isinstance(objective, DPOConfig) and objective.designed_dose is None:
        dose = round(DOSE * objective.negative_dose, 6)
        gentler["softer"] = objective.model_copy(update={"negative_dose": dose})
    if isinstance(objective, PairConfig) and objective.designed_dose is None:
        chosen_by_forces: dict[str, Any] = {"designed_dose": DesignedDoseConfig()}
        if isinstance(objective, DPOConfig):
            chosen_by_forces["negative_dose"] = 1.0
        designed = objective.model_copy(update=chosen_by_forces)
        if _is_possible(trained, designed):
            gentler["designed"] = designed
    return {
        "as-it-was": ArmConfig(objective=objective),
        **{label: ArmConfig(objective=own) for label, own in gentler.items()},
        **_warmed_up(trained),
        "filtered": ArmConfig(objective=objective, filter=FilterConfig(by="on_all", drop=DROP)),
    }


def _warmed_up(trained: TrainConfig) -> dict[str, ArmConfig]:
    """An arm with a warm-up, unless the training has one.

    Without it Adam's first steps are as long as any, from one batch each, and pull hardest.
    """
    steps = trained.steps // WARMUP
    if trained.warmup_steps or not steps:
        return {}
    objective: Any = trained.objective
    return {"warmed-up": ArmConfig(objective=objective, warmup_steps=steps)}


def _is_possible(trained: TrainConfig, objective: PairConfig) -> bool:
    """Whether a training with these settings takes the objective."""
    settings = trained.model_dump(exclude_unset=True) | {"objective": objective.model_dump()}
    try:
        TrainConfig.model_validate(settings)
    except (ConfigError, ValidationError):
        return False
    return True
