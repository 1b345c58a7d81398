"""The papers' orders of SFT and DPO → claims → page."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from dynolab.errors import ConfigError, check_known
from dynolab.objectives.pair_losses import IPOConfig
from dynolab.results.arms import (
    AFTER_EXTENDED,
    AFTER_EXTENDED_HALF,
    AFTER_SFT,
    FROM_BASE,
    IPO,
    ON_POLICY,
    ON_POLICY_IPO,
    RESAMPLED,
)
from experiments.reproduce.stages import REPRODUCTION_PAGE, ReproductionPageConfig
from flows.comparison import (
    Label,
    PairComparison,
    answers_step,
    arm_steps,
    judge_step,
    resolved_comparison,
    shared_steps,
)
from flows.flow import Name, Plan, StagedFlow, Step
from tasks.answers import JUDGE, SAMPLED_ANSWERS
from tasks.arm import ARM, ArmConfig
from tasks.training import SFT

PAPERS: dict[Label, ArmConfig] = {
    FROM_BASE: ArmConfig(start="base"),
    AFTER_SFT: ArmConfig(),
    AFTER_EXTENDED: ArmConfig(start="extended"),
    AFTER_EXTENDED_HALF: ArmConfig(start="extended_half"),
    RESAMPLED: ArmConfig(pairs="resampled"),
}
"""The DPO trainings on the data's pairs that the papers' claims are about."""

PAPERS_ON_POLICY: dict[Label, ArmConfig] = {
    ON_POLICY: ArmConfig(pairs="on_policy"),
    IPO: ArmConfig(objective=IPOConfig()),
    ON_POLICY_IPO: ArmConfig(objective=IPOConfig(), pairs="on_policy"),
}
"""Trainings on the policy's own pairs, and IPO on the data's pairs to compare them with."""


class ReproduceParameters(PairComparison):
    """Parameters of the reproduction of the papers' findings."""

    name: Name = "reproduce"
    learning_rates: dict[Label, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="Training → learning rate in place of the shared one, for a loss with "
        "gradients of another size: ipo, on-policy-ipo.",
    )

    @model_validator(mode="after")
    def _watches_sft(self) -> ReproduceParameters:
        if self.sft is None:
            raise ConfigError("sft", None, "claims on SFT need it; leave this out for its defaults")
        if not self.sft.probe_every:
            raise ConfigError(
                "sft.probe_every", 0, "claims on SFT need its probes; set probe_every to 1 or more"
            )
        labels = PAPERS | PAPERS_ON_POLICY
        for label in self.learning_rates:
            check_known("learning_rates", label, labels)
        return self

    @property
    def arms(self) -> dict[Label, ArmConfig]:
        """The trainings to run; on-policy ones only if the rewards fit the data."""
        arms = PAPERS | PAPERS_ON_POLICY if self.ranks_answers else PAPERS
        return {
            label: arm.model_copy(update={"learning_rate": self.learning_rates.get(label)})
            for label, arm in arms.items()
        }


JUDGED = (AFTER_SFT, AFTER_EXTENDED)
"""The trainings whose answers the papers compare by judges."""


def reproduce_steps(parameters: ReproduceParameters) -> list[Step]:
    """The reproduction's steps in order: SFT, DPO and answers of every seed, and the page."""
    steps: list[Step] = []
    arms = parameters.arms
    for seed in parameters.seeds:
        steps += shared_steps(parameters, arms, seed)
        for label, arm in arms.items():
            steps += arm_steps(parameters, label, arm, seed)
        steps += [
            *(answers_step(parameters, label, seed) for label in JUDGED),
            judge_step(parameters, AFTER_SFT, [AFTER_EXTENDED], seed),
        ]
    page = ReproductionPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=tuple(arms),
        settings=parameters.as_yaml,
    )
    measured = (SFT, ARM, SAMPLED_ANSWERS, JUDGE)
    shown = {step.name: step.name for step in steps if step.stage in measured}
    shown |= {f"data-{seed}": f"data-{seed}" for seed in parameters.seeds}
    return [*steps, Step("reproduction-page", REPRODUCTION_PAGE, page, shown)]


FLOW = StagedFlow(
    "reproduce",
    ReproduceParameters,
    lambda parameters, _: Plan(study := resolved_comparison(parameters), reproduce_steps(study)),
    page="reproduction-page",
    file="reproduction.html",
)
