"""The comparison of remedies: shared start → preference trainings → answers → contests → page."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dynolab.errors import ConfigError
from dynolab.objectives.designed_dose import DesignedDoseConfig
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.ipo import IPOConfig
from dynolab.objectives.simpo import SimPOConfig
from dynolab.objectives.sppo import SPPOConfig
from dynolab.training.alarm import AlarmConfig
from flows.comparison import (
    SHARED,
    Label,
    PairComparison,
    answers_step,
    arm_steps,
    judge_step,
    resolved_comparison,
    shared_steps,
)
from flows.flow import Name, Plan, StagedFlow
from tasks.arm import ArmConfig
from tasks.filter import FilterConfig
from tasks.mitigation_page import MITIGATION_PAGE, MitigationPageConfig
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.pair_inputs import data_of

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
    arms: dict[Label, ArmConfig] = Field(
        ARMS,
        min_length=1,
        validate_default=True,
        description="Name on the page → training that is compared.",
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
        cls, arms: dict[Label, ArmConfig], known: ValidationInfo
    ) -> dict[Label, ArmConfig]:
        """Without SFT, arms that name no start take the base model."""
        if known.data.get("sft", "not valid") is not None:
            return arms
        started = {}
        for label, arm in arms.items():
            if "start" in arm.model_fields_set and arm.start != "base":
                remedy = "sft is null, so that only base is there; set base, or leave the arm out"
                raise ConfigError(f"arms.{label}.start", arm.start, remedy)
            started[label] = arm.model_copy(update={"start": "base"})
        return started

    @model_validator(mode="after")
    def _fits_together(self) -> MitigationParameters:
        if self.baseline is not None and self.baseline not in self.arms:
            raise ConfigError("baseline", self.baseline, f"choose one of {', '.join(self.arms)}")
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
            try:
                arm.training(self.training, self.on_policy, 0)
            except ConfigError as error:
                raise ConfigError(f"arms.{label}", error.value, error.remedy) from error
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
            compared += arm_steps(parameters, label, arm, seed)
            compared.append(answers_step(parameters, label, seed))
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
    watched = map(data_of, parameters.seeds)
    measured = {name: name for name in (*watched, *(step.name for step in compared))}
    return [*shared, *compared, Step("mitigation-page", MITIGATION_PAGE, page, measured)]


def plan(parameters: MitigationParameters, _: Platform) -> Plan:
    """Plans the shared steps, every arm's, and the page."""
    known = resolved_comparison(parameters)
    return Plan(known, mitigation_steps(known))


FLOW = StagedFlow(
    "mitigation",
    MitigationParameters,
    plan,
    page="mitigation-page",
    file="mitigation.html",
)
