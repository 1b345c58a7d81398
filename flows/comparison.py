"""Comparisons of trainings over seeds: their shared steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, StringConstraints, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError, under_field
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig
from dynolab.judges.contests import WORLD_REWARDS
from dynolab.objectives.sft import SFTConfig, SFTExtendedConfig
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.results.arms import Start
from dynolab.rollouts.generator import SampleConfig
from dynolab.rollouts.rewards import Rewards
from dynolab.training.config import LoopConfig, TrainConfig
from flows.flow import FlowParameters, Name, Step
from flows.probes import watched_rows_and_base
from tasks.answers import (
    ANSWERS_OF,
    JUDGE,
    RESAMPLED as SAMPLED_PAIRS,
    SAMPLED_ANSWERS,
    JudgeJob,
    SampledAnswersConfig,
)
from tasks.arm import ARM, ArmConfig, OnPolicyConfig
from tasks.audit import AUDIT, FILTER, AuditConfig, AuditJob
from tasks.base import BaseConfig, check_model_fits_data, resolve_base, seeded_base, seeded_data
from tasks.data import PROMPTS
from tasks.runtime.track.runs import flat
from tasks.shared.seeds import Seeds, start_of, step_of
from tasks.training import SFT

Label = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


def given_arms(arms: Any) -> Any:
    """The arms that are not null; a null leaves an arm of a file out: `arms.dpo=null`."""
    if not isinstance(arms, dict):
        return arms
    return {label: arm for label, arm in arms.items() if arm is not None}


class Comparison(FlowParameters):
    """Seeds, and the rows and base model that every seed starts from."""

    name: Name = Field(description="Name of the comparison: its run and its page's file.")
    seeds: Seeds = Field(
        (0, 1, 2),
        description="Each seeds weights, batches, samples and the built-in world. Rows of another "
        "source are the same for all seeds.",
    )
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()

    @model_validator(mode="after")
    def _model_fits_data(self) -> Comparison:
        check_model_fits_data(self.base, self.data)
        return self

    def data_of(self, seed: int) -> DataConfig:
        """The rows of one seed: its own built-in world, or the same rows for all seeds."""
        return seeded_data(self.data, seed) if self.data.source == "world" else self.data

    def base_of(self, seed: int) -> BaseConfig:
        """The base model of one seed: its own built-in model, or the same weights for all seeds."""
        return seeded_base(self.base, seed) if self.base.source == "builtin" else self.base


AnyComparison = TypeVar("AnyComparison", bound=Comparison)


def resolved_comparison(parameters: AnyComparison) -> AnyComparison:
    """Pins the sources to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    return parameters.model_copy(
        update={"data": resolve_data(parameters.data), "base": resolve_base(parameters.base)}
    )


SHARED = ("data", "rows", "prompts", "base", "sft", "sampled", "audit", "judge")
"""First words of the names of shared steps; an arm's label cannot start with one."""


class PairComparison(Comparison):
    """A comparison of preference trainings; these settings are the same for all arms."""

    probe_set: ProbeSetConfig | None = Field(
        None,
        description="Kinds of answers that are watched; null: the rows that the data bring.",
    )
    sft: TrainConfig | None = Field(
        TrainConfig(),
        description="SFT before, on chosen answers; with start: extended on both answers; null: "
        "none, the base model is finetuned already and every arm starts from it.",
    )
    training: TrainConfig = Field(
        TrainConfig(probe_every=20),
        description="Training settings of all arms, without the objective.",
    )
    on_policy: OnPolicyConfig = Field(
        OnPolicyConfig(), description="How arms with pairs: on_policy sample and rank answers."
    )
    audit: AuditConfig = Field(AuditConfig(), description="Audit of the pairs that filters rank.")
    answers: SampledAnswersConfig = Field(
        SampledAnswersConfig(), description="How answers of every arm's model are sampled."
    )
    judge: JudgeConfig = Field(
        ExactJudgeConfig(), description="Judge of an arm's answers against the baseline's."
    )

    @model_validator(mode="after")
    def _can_be_judged(self) -> PairComparison:
        if "objective" in self.training.model_fields_set:
            raise ConfigError(
                "training.objective",
                self.training.objective.name,
                "every arm has its own objective; leave it out here",
            )
        if self.sft is not None and not isinstance(self.sft.objective, SFTConfig):
            raise ConfigError(
                "sft.objective",
                self.sft.objective.name,
                "must be sft, on chosen answers; for both answers set start: extended in an arm",
            )
        if not self.training.probe_every:
            raise ConfigError(
                "training.probe_every",
                0,
                "arms are compared by probes; set probe_every to 1 or more",
            )
        with under_field("on_policy.rewards"):
            Rewards(self.on_policy.rewards)
        if self.judge == ExactJudgeConfig() and not self.data.states_facts:
            raise ConfigError(
                "judge",
                "exact",
                "its default rewards fit only the built-in world of facts; give rewards for your "
                "data, or choose log_prob or llm",
            )
        return self

    @property
    def ranks_answers(self) -> bool:
        """Whether the rewards of on-policy arms fit the data."""
        return self.data.states_facts or self.on_policy.rewards != WORLD_REWARDS


def shared_steps(
    parameters: PairComparison, arms: Mapping[str, ArmConfig], seed: int
) -> list[Step]:
    """The steps that make the models and rows that a seed's arms start from."""
    data = f"data-{seed}"
    built = parameters.probe_set
    steps = watched_rows_and_base(
        parameters.data_of(seed),
        parameters.base_of(seed),
        None if built is None else built.model_copy(update={"seed": seed}),
        suffix=f"-{seed}",
    )
    if any(arm.pairs == "on_policy" for arm in arms.values()):
        steps.append(Step(f"prompts-{seed}", PROMPTS, parameters.data_of(seed)))
    starts = {arm.start for arm in arms.values()}
    for start, config in _finetunings(parameters.sft, starts, seed).items():
        reads = {"data": data, "model": f"base-{seed}"}
        steps.append(Step(start_of(start, seed), SFT, config, reads))
    for arm in arms.values():
        steps += [step for step in _preparation_steps(parameters, arm, seed) if step not in steps]
    return steps


def arm_steps(parameters: PairComparison, label: str, arm: ArmConfig, seed: int) -> list[Step]:
    """The steps of an arm: its filter, if it has one, and its training `<label>-<seed>`."""
    model, name = start_of(arm.start, seed), step_of(label, seed)
    reads = {"data": f"data-{seed}", "model": model}
    steps = []
    if arm.pairs == "resampled":
        reads["data"] = _sampled_name(arm, seed)
    if arm.pairs == "on_policy":
        reads["prompts"] = f"prompts-{seed}"
    if arm.filter is not None:
        reads["data"] = step_of(label, seed, "filter")
        ranked = {"audit": _audit_name(arm, seed)} if arm.filter.ranks else {}
        chosen = arm.filter
        if chosen.random is not None:
            chosen = chosen.model_copy(update={"seed": chosen.seed + seed})
        steps.append(Step(reads["data"], FILTER, chosen, {"data": f"data-{seed}", **ranked}))
    training = arm.training(parameters.training, parameters.on_policy, seed)
    compared_by = told_by(label, seed, training)
    return [*steps, Step(name, ARM, training, reads, compared_by)]


def told_by(label: str, seed: int, training: LoopConfig) -> dict[str, str]:
    """Parameters of an arm's row in MLflow's comparison."""
    settings = training.objective.model_dump(mode="json", exclude_defaults=True)
    objective = dict(flat(settings | {"name": training.objective.name}, "objective."))
    return {"arm": label, "seed": str(seed)} | objective


def _finetunings(
    config: TrainConfig | None, starts: Collection[Start], seed: int
) -> dict[Start, TrainConfig]:
    """The SFT configs that `starts` need: on chosen answers, or on both answers of every pair."""
    if config is None:
        return {}
    plain = config.model_copy(update={"seed": seed})
    configs: dict[Start, TrainConfig] = {}
    if "sft" in starts:
        configs["sft"] = plain
    if "extended" in starts:
        configs["extended"] = extended(plain)
    if "extended_half" in starts:
        configs["extended_half"] = plain.model_copy(
            update={"objective": _extended_objective(plain)}
        )
    return configs


def extended(plain: TrainConfig) -> TrainConfig:
    """SFT on both answers of every pair, with as much training on chosen ones as in plain SFT.

    The authors' extended data has two rows for each pair, with the same rows per step and the same
    epochs (Ren & Sutherland, arXiv 2407.10490): half as many pairs per step, twice the steps. A
    chosen answer is then seen as often, with weight 1/batch_size in the step's mean. Doubling the
    loss instead has no effect: the step length of AdamW and RMSprop does not depend on the loss's
    scale. Probes come at the same parts of an epoch.

    **Raises** `ConfigError` for a batch that cannot be halved.
    """
    batch, ranks, micro = plain.batch_size, plain.engine.ranks, plain.micro_examples
    if batch % (2 * ranks):
        raise ConfigError(
            "sft.batch_size",
            batch,
            f"extended SFT halves it, for two answers per pair: set a multiple of "
            f"{2 * ranks}, twice engine.ranks",
        )
    changes = {
        "objective": _extended_objective(plain).model_dump(),
        "steps": 2 * plain.steps,
        "batch_size": batch // 2,
        "micro_batch_size": micro if micro % 2 else micro // 2,
        "probe_every": 2 * plain.probe_every,
    }
    return TrainConfig.model_validate(plain.model_dump() | changes)


def _extended_objective(plain: TrainConfig) -> SFTExtendedConfig:
    assert isinstance(plain.objective, SFTConfig), "_can_be_judged rejects other objectives"
    return SFTExtendedConfig(normalise=plain.objective.normalise)


def _preparation_steps(parameters: PairComparison, arm: ArmConfig, seed: int) -> list[Step]:
    """The steps on an arm's start that it needs: sampled pairs, or an audit of its objective."""
    reads, steps = {"data": f"data-{seed}", "model": start_of(arm.start, seed)}, []
    if arm.pairs == "resampled":
        steps.append(Step(_sampled_name(arm, seed), SAMPLED_PAIRS, SampleConfig(seed=seed), reads))
    if arm.filter is not None and arm.filter.ranks:
        job = AuditJob(**dict(parameters.audit), objective=arm.objective)
        steps.append(Step(_audit_name(arm, seed), AUDIT, job, reads))
    return steps


def _sampled_name(arm: ArmConfig, seed: int) -> str:
    return f"sampled-{arm.start}-{seed}"


def _audit_name(arm: ArmConfig, seed: int) -> str:
    return f"audit-{arm.objective.name}-{arm.start}-{seed}"


def answers_step(parameters: PairComparison, label: str, seed: int) -> Step:
    """Samples answers of an arm's model; all arms of a seed share the random numbers."""
    config = parameters.answers.model_copy(update={"seed": seed})
    reads = {"data": f"data-{seed}", "model": step_of(label, seed)}
    return Step(step_of(label, seed, "said"), SAMPLED_ANSWERS, config, reads)


def judge_step(parameters: PairComparison, baseline: str, others: Sequence[str], seed: int) -> Step:
    """Judges the other arms' answers against the baseline's."""
    judge = parameters.judge
    job = JudgeJob(label=judge.name, judge=judge, baseline=baseline, policies=tuple(others))
    reads = {ANSWERS_OF + label: step_of(label, seed, "said") for label in (baseline, *others)}
    if judge.name == "log_prob":
        reads["reference"] = f"base-{seed}"
    return Step(f"judge-{seed}", JUDGE, job, reads)
