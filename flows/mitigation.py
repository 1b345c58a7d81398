"""The comparison of remedies: shared start → preference trainings → answers → contests → page.

A study offers one that is made from its own settings (`remedies_file`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dynolab.errors import ConfigError, check_known, under_field
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.pair_losses import IPOConfig, SimPOConfig, SPPOConfig
from dynolab.objectives.pairs import DesignedDoseConfig, PairConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.training.alarm import AlarmConfig
from dynolab.training.config import TrainConfig
from flows.comparison import (
    SHARED,
    Label,
    PairComparison,
    answers_step,
    arm_steps,
    given_arms,
    judge_step,
    resolved_comparison,
    shared_steps,
)
from flows.flow import Name, Plan, StagedFlow, Step
from flows.study.parameters import StudyParameters
from tasks.arm import MITIGATION_PAGE, ArmConfig, MitigationPageConfig
from tasks.audit import FilterConfig

ARMS: dict[Label, ArmConfig] = {
    "dpo": ArmConfig(),
    "extended": ArmConfig(start="extended"),
    "extended-half": ArmConfig(start="extended_half"),
    "resampled": ArmConfig(pairs="resampled"),
    "on-policy": ArmConfig(pairs="on_policy"),
    "ipo": ArmConfig(objective=IPOConfig()),
    "on-policy-ipo": ArmConfig(objective=IPOConfig(), pairs="on_policy"),
    "sppo": ArmConfig(
        objective=SPPOConfig(beta=0.1, labels="soft"), pairs="on_policy", updates_per_rollout=25
    ),
    "simpo": ArmConfig(objective=SimPOConfig()),
    "filter-audit": ArmConfig(filter=FilterConfig(by="on_all", drop=0.3)),
    "filter-ches": ArmConfig(filter=FilterConfig(by="ches", drop=0.3)),
    "alarm": ArmConfig(alarm=AlarmConfig(rise=2.0)),
    "dose-0": ArmConfig(objective=DPOConfig(negative_dose=0.0)),
    "dose-03": ArmConfig(objective=DPOConfig(negative_dose=0.3)),
    "designed": ArmConfig(objective=DPOConfig(designed_dose=DesignedDoseConfig())),
    "beta-low": ArmConfig(objective=DPOConfig(beta=0.03)),
    "beta-high": ArmConfig(objective=DPOConfig(beta=0.3)),
}


class MitigationParameters(PairComparison):
    """Parameters of the comparison of remedies against squeezing."""

    name: Name = "mitigation"
    arms: Annotated[dict[Label, ArmConfig], BeforeValidator(given_arms)] = Field(
        ARMS,
        min_length=1,
        validate_default=True,
        description="Name on the page → training that is compared; null leaves one out.",
    )
    baseline: str | None = Field(
        None, description="Arm that the others are compared with; default: the first."
    )

    follow: tuple[str, ...] = Field(
        (),
        description="Ids of watched pairs whose chosen answers the page follows from arm to arm; "
        "default: those that fell most under the baseline with the first seed.",
    )

    @field_validator("arms")
    @classmethod
    def _start_from_what_there_is(
        cls, arms: dict[Label, ArmConfig], validated: ValidationInfo
    ) -> dict[Label, ArmConfig]:
        """Without SFT, arms that name no start take the base model."""
        if validated.data.get("sft", "not valid") is not None:
            return arms
        started = {}
        for label, arm in arms.items():
            if "start" in arm.model_fields_set and arm.start != "base":
                raise ConfigError(
                    f"arms.{label}.start",
                    arm.start,
                    "sft is null, so that only base is there; set base, or leave the arm out",
                )
            started[label] = arm.model_copy(update={"start": "base"})
        return started

    @model_validator(mode="after")
    def _fits_together(self) -> MitigationParameters:
        check_known("baseline", self.baseline, self.arms)
        for label, arm in self.arms.items():
            if label.split("-")[0] in SHARED:
                raise ConfigError("arms", label, "a shared step has this name; choose another")
            if arm.pairs == "on_policy" and not self.ranks_answers:
                raise ConfigError(
                    f"arms.{label}.pairs",
                    arm.pairs,
                    "the default on_policy.rewards fit only the built-in world; give rewards for "
                    "your data, or leave the arm out",
                )
            with under_field(f"arms.{label}"):
                arm.training(self.training, self.on_policy, 0)
        return self

    @property
    def baseline_label(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.arms))


def mitigation_steps(parameters: MitigationParameters) -> list[Step]:
    """The comparison's steps in order: the shared ones, every arm's, and the page.

    Steps that are the same for all seeds (given rows, given weights) share a key, so they run once.
    """
    arms, baseline = parameters.arms, parameters.baseline_label
    shared, compared = [], []
    for seed in parameters.seeds:
        shared += shared_steps(parameters, arms, seed)
        for label, arm in arms.items():
            compared += [
                *arm_steps(parameters, label, arm, seed),
                answers_step(parameters, label, seed),
            ]
        if others := [label for label in arms if label != baseline]:
            compared.append(judge_step(parameters, baseline, others, seed))
    page = MitigationPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=arms,
        baseline=baseline,
        training=parameters.training,
        on_policy=parameters.on_policy,
        judge=parameters.judge.name,
        follow=parameters.follow,
        settings=parameters.as_yaml,
    )
    watched = (f"data-{seed}" for seed in parameters.seeds)
    measured = {name: name for name in (*watched, *(step.name for step in compared))}
    return [*shared, *compared, Step("mitigation-page", MITIGATION_PAGE, page, measured)]


FLOW = StagedFlow(
    "mitigation",
    MitigationParameters,
    lambda parameters, _: Plan(study := resolved_comparison(parameters), mitigation_steps(study)),
    page="mitigation-page",
    file="mitigation.html",
)


DOSE, WARMUP = 0.3, 5
"""Factor on the push on rejected answers; of `WARMUP` steps one warms up."""

_ABOUT = """\
# Made by the study {name}: its preference training as it was, and what kept chosen answers higher
# at the same margin on pairs of HH (mitigation_hh.yaml): a smaller push on rejected answers
# (softer); the largest push, step by step, that to first order lowers no other chosen answer
# (designed); SFT on the chosen answer beside (rpo); a penalty where it falls below the reference
# (positive); SFT on both answers before (extended). Besides, smaller first steps, where the study
# has no warm-up (warmed-up); and, after a study with an account of rows of your own, without the
# pairs that pulled its fallen answers down (without-named), and its controls: without as many pairs
# drawn at random (without-random), and without those whose words are most like the fallen answers'
# (without-similar). To leave one out: --set arms.NAME=null. What comes before the training has the
# study's settings. The page follows the fallen answers (follow).
"""


def remedies_file(study: StudyParameters) -> str:
    """A study file of `mitigation`; empty for a training that it cannot compare.

    The arms have the study's settings but for the remedy, over the study's seed and the next two.
    """
    trained = study.preference
    if trained.objective.name not in PAIR_OBJECTIVES:
        return ""
    left_out = {"objective", "seed", "record_steps", "checkpoint_every", "ledger", "alarm", "best"}
    training = trained.model_dump(mode="json", exclude_unset=True, exclude=left_out) | {
        "probe_every": trained.probe_every or max(1, trained.steps // 10)
    }
    settings: dict[str, Any] = {
        "name": f"{study.name}-remedies",
        "seeds": [study.seed, study.seed + 1, study.seed + 2],
        "data": _given(study.data),
        "base": _given(study.base),
        **({} if study.probe_set is None else {"probe_set": _given(study.probe_set)}),
        "sft": None if study.sft is None else _given(study.sft),
        "training": training,
    }
    if not study.data.states_facts:
        settings["judge"] = {"name": "log_prob"}
        settings["answers"] = {"prompts": 40, "samples": 1}
    # The arms come last, so that the study's report can add one.
    arms = _arms(trained)
    if study.sft is not None:
        arms["extended"] = ArmConfig(objective=trained.objective, start="extended")
    settings["arms"] = {label: _given(arm) for label, arm in arms.items()}
    try:
        MitigationParameters.model_validate(settings)
    except (ConfigError, ValidationError):
        return ""  # what a comparison refuses is no fault of the study
    return _ABOUT.format(name=study.name) + yaml.safe_dump(settings, sort_keys=False)


def _given(config: BaseModel) -> dict[str, Any]:
    """The settings that the study gives."""
    return config.model_dump(mode="json", exclude_unset=True)


def _arms(trained: TrainConfig) -> dict[str, ArmConfig]:
    objective: Any = trained.objective
    changes: dict[str, dict[str, Any]] = {}
    if isinstance(objective, PairConfig) and not objective.chooses_dose:
        changes["designed"] = {"designed_dose": DesignedDoseConfig()}
        if isinstance(objective, DPOConfig):
            changes["designed"]["negative_dose"] = 1.0
            changes["softer"] = {"negative_dose": round(DOSE * objective.negative_dose, 6)}
            if objective.loss_type == ("sigmoid",):
                changes |= {
                    "rpo": {"loss_type": ("sigmoid", "sft")},
                    "positive": {"loss_type": ("dpop",), "dpop_lambda": 5.0},
                }
    steps = 0 if trained.warmup_steps else trained.steps // WARMUP
    # Without it Adam's first steps are as long as any, from one batch each, and pull hardest.
    warmed = {"warmed-up": ArmConfig(objective=objective, warmup_steps=steps)} if steps else {}
    arms = {"as-it-was": ArmConfig(objective=objective)}
    settings = trained.model_dump(exclude_unset=True)
    for label, change in changes.items():
        arm_objective = objective.model_copy(update=change)
        with suppress(ConfigError, ValidationError):  # of a training that cannot take the loss
            TrainConfig.model_validate(settings | {"objective": arm_objective.model_dump()})
            arms[label] = ArmConfig(objective=arm_objective)
    return arms | warmed
