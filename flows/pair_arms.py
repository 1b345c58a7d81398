"""Arms of preference training: what each starts from and trains on, and the stages that it has.

Arms of a seed share what comes before them: rows, base model, SFT, sampled answers, audits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import Field, model_validator

from dynolab.data.arm_results import Start
from dynolab.errors import ConfigError
from dynolab.judges.config import ExactJudgeConfig, JudgeConfig
from dynolab.objectives.sft import SFTExtendedConfig
from dynolab.rollouts.generator import SampleConfig
from dynolab.training.config import TrainConfig
from flows.comparison import Comparison
from tasks.arm import ARM, ArmConfig
from tasks.audit import AUDIT, AuditConfig, AuditJob
from tasks.base import BASE
from tasks.data import DATA
from tasks.filter import FILTER
from tasks.judge import ANSWERS_OF, JUDGE, JudgeJob
from tasks.onpolicy import ONPOLICY
from tasks.pair_inputs import judge_of, said_of, start_of, training_of
from tasks.runtime.chain import Step
from tasks.said import SAID, SayingConfig
from tasks.training import SFT

SHARED = ("data", "base", "sft", "sampled", "audit", "judge")
"""First words of the names of stages that arms share; no arm can have one."""


class PairComparison(Comparison):
    """A comparison of preference trainings: what all arms share."""

    sft: TrainConfig = Field(
        TrainConfig(), description="Training before; of both answers where an arm starts extended."
    )
    training: TrainConfig = Field(
        TrainConfig(probe_every=20), description="What all arms share: all but the objective."
    )
    audit: AuditConfig = Field(AuditConfig(), description="Of the pairs that filters rank.")
    answers: SayingConfig = Field(SayingConfig(), description="What every arm's model is asked.")
    judge: JudgeConfig = Field(
        ExactJudgeConfig(), description="Who judges an arm's answers against the baseline's."
    )

    @model_validator(mode="after")
    def _can_be_judged(self) -> PairComparison:
        if "objective" in self.training.model_fields_set:
            raise ConfigError(
                "training.objective", self.training.objective.name,
                "arms have objectives of their own; leave it out here",
            )  # fmt: skip
        if not self.training.probe_every:
            raise ConfigError(
                "training.probe_every", 0, "arms are compared by probes; set the steps between"
            )
        if self.judge == ExactJudgeConfig() and self.data.source != "world":
            raise ConfigError(
                "judge", "exact",
                f"knows the built-in world alone; with data.source = {self.data.source} give "
                "rewards that know your data, or take log_prob or llm",
            )  # fmt: skip
        return self


def shared_steps(
    parameters: PairComparison, arms: Mapping[str, ArmConfig], seed: int
) -> list[Step]:
    """From rows to the models and rows that a seed's arms need."""
    data, base = f"data-{seed}", parameters.base_of(seed)
    reads = {"data": data} if base.source == "builtin" else {}
    steps = [Step(data, DATA, parameters.data_of(seed)), Step(f"base-{seed}", BASE, base, reads)]
    starts = {arm.start for arm in arms.values()}
    for start, config in _finetunings(parameters.sft, seed).items():
        if start in starts:
            reads = {"data": data, "model": f"base-{seed}"}
            steps.append(Step(start_of(start, seed), SFT, config, reads))
    for arm in arms.values():
        steps += [step for step in _prepared(parameters, arm, seed) if step not in steps]
    return steps


def arm_steps(parameters: PairComparison, label: str, arm: ArmConfig, seed: int) -> list[Step]:
    """An arm's filter, where it has one, and its training, which is named `<label>-<seed>`."""
    model, name = start_of(arm.start, seed), training_of(label, seed)
    rows = f"sampled-{arm.start}-{seed}" if arm.rejected == "sampled" else f"data-{seed}"
    steps = []
    if arm.filter is not None:
        rows = f"{name}-filter"
        reads = {"data": f"data-{seed}", "audit": _audit_name(arm, seed)}
        steps.append(Step(rows, FILTER, arm.filter, reads))
    training = arm.training(parameters.training, seed)
    return [*steps, Step(name, ARM, training, {"data": rows, "model": model})]


def _finetunings(config: TrainConfig, seed: int) -> dict[Start, TrainConfig]:
    """SFT on chosen answers, and on both answers of every pair."""
    plain = config.model_copy(update={"seed": seed})
    return {
        "sft": plain,
        "extended": plain.model_copy(update={"objective": SFTExtendedConfig()}),
    }


def _prepared(parameters: PairComparison, arm: ArmConfig, seed: int) -> list[Step]:
    """What an arm needs of its start: samples, or an audit under its objective."""
    reads, found = {"data": f"data-{seed}", "model": start_of(arm.start, seed)}, []
    if arm.rejected == "sampled":
        sampling = SampleConfig(seed=seed)
        found.append(Step(f"sampled-{arm.start}-{seed}", ONPOLICY, sampling, reads))
    if arm.filter is not None:
        job = AuditJob(**dict(parameters.audit), objective=arm.objective)
        found.append(Step(_audit_name(arm, seed), AUDIT, job, reads))
    return found


def _audit_name(arm: ArmConfig, seed: int) -> str:
    return f"audit-{arm.objective.name}-{arm.start}-{seed}"


def said_step(parameters: PairComparison, label: str, seed: int) -> Step:
    """What an arm's model answers; all arms of a seed draw with the same random numbers."""
    config = parameters.answers.model_copy(update={"seed": seed})
    reads = {"data": f"data-{seed}", "model": training_of(label, seed)}
    return Step(said_of(label, seed), SAID, config, reads)


def judge_step(
    parameters: PairComparison, baseline: str, others: Sequence[str], seed: int
) -> Step:  # fmt: skip
    """The other arms' answers against the baseline's."""
    judge = parameters.judge
    job = JudgeJob(label=judge.name, judge=judge, baseline=baseline, policies=tuple(others))
    reads = {ANSWERS_OF + label: said_of(label, seed) for label in (baseline, *others)}
    if judge.name == "log_prob":
        reads["reference"] = f"base-{seed}"
    return Step(judge_of(seed), JUDGE, job, reads)
