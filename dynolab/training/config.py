"""Settings of a training run."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.encode import Overlong
from dynolab.errors import ConfigError, check_settings
from dynolab.objectives.dpo import SPINConfig
from dynolab.objectives.grpo import GroupDoseConfig, GRPOConfig
from dynolab.objectives.pairs import DesignedDoseConfig
from dynolab.objectives.registry import ObjectiveConfig, RowObjectiveConfig
from dynolab.objectives.sft import SFTConfig
from dynolab.rollouts.generator import SampleConfig
from dynolab.rollouts.rewards import RewardConfig
from dynolab.training.alarm import AlarmConfig

Schedule = Literal["constant", "linear", "cosine"]
ZeroStage = Literal[0, 1, 2, 3]


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(BaseModel):
    """A torch optimizer and the settings that affect forces."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Literal["sgd", "adamw", "rmsprop"] = Field("adamw", description="torch's optimizer.")
    learning_rate: float = Field(2e-4, gt=0, description="At the end of the warm-up.")
    momentum: float = Field(0.0, ge=0, lt=1, description="SGD and RMSprop.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="AdamW.")
    smoothing: float = Field(0.99, ge=0, lt=1, description="RMSprop's α.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW and RMSprop.")
    weight_decay: float = Field(0.0, ge=0)


DIFFERENTIATED = ("sgd",)
"""Optimizers that metagradients go through (`dynolab.forces.ledger.metagradient`)."""


class EngineConfig(BaseModel):
    """Where the steps run: DeepSpeed ranks, or this process alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["deepspeed", "plain"] = "deepspeed"
    ranks: int = Field(2, ge=1, description="Processes that train together.")
    zero_stage: ZeroStage = 2
    dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Of forwards and backwards. Under bf16 the optimizer keeps fp32 weights, which "
        "are the result.",
    )
    attention: Literal["sdpa", "eager"] = "sdpa"
    reproducible: bool = Field(
        True,
        exclude_if=lambda reproducible: reproducible,
        description="On GPUs: the same bits at each run. false: attention that needs less memory "
        "for long rows; its steps can be neither recorded nor replayed.",
    )
    checkpoint_activations: bool = Field(
        False,
        exclude_if=lambda checkpoints: not checkpoints,
        description="Compute each layer's activations again in the backward pass: less memory for "
        "a third more time.",
    )
    offload: bool = Field(
        False,
        exclude_if=lambda offloads: not offloads,
        description="Keep ZeRO's fp32 weights and optimizer state in the host's memory, and update "
        "them there: less GPU memory for slower steps.",
    )


class LoraConfig(BaseModel):
    """Low-rank adapters: `W + (alpha/rank) B A`; only A and B are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rank: int = Field(8, ge=1)
    alpha: int = Field(16, ge=1)
    target: tuple[str, ...] = Field(
        (),
        description="Names of the layers to adapt; default: every linear layer but the head.",
    )


class BestConfig(BaseModel):
    """Which probe's model becomes the training's result."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    metric: str = Field("probe/chosen/logp", description="A probe metric, as MLflow names it.")
    largest: bool = Field(True, description="False: the smallest is best.")


class InRunLedgerConfig(BaseModel):
    """The account of single steps, kept while training runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    every: int = Field(4, ge=1, description="Steps between accounts; each is of one step.")
    kinds: tuple[str, ...] = Field(
        ("chosen", "rejected"), min_length=1, description="Kinds of answers; each has an account."
    )
    pairs: int = Field(8, ge=1, description="Training pairs whose answers are averaged.")


class LoopConfig(BaseModel):
    """Settings common to every training, on rows or on groups."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    objective: ObjectiveConfig
    lora: LoraConfig | None = Field(
        None, description="Train adapters instead of the weights; the result is merged."
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    engine: EngineConfig = EngineConfig()
    steps: int = Field(60, ge=1, description="Optimizer steps.")
    batch_size: int = Field(
        16, ge=1, le=10**6, description="Examples per optimizer step, over all ranks."
    )
    micro_batch_size: int = Field(8, ge=1, description="Examples per forward on one rank.")
    warmup_steps: int = Field(0, ge=0, description="Steps of linear learning-rate warm-up.")
    # Omitted from stage keys at its default, so that earlier results keep their keys.
    schedule: Schedule = Field(
        "constant",
        exclude_if=lambda schedule: schedule == "constant",
        description="Learning rate after warm-up: constant, or falling to 0 at the end, linear or "
        "as a cosine.",
    )
    clip_norm: float = Field(10.0, gt=0, description="Gradients are clipped to this global norm.")
    overlong: Overlong = "error"
    max_length: int | None = Field(None, ge=8, description="Default: the model's context.")
    seed: int = 0
    probe_every: int = Field(0, ge=0, description="Steps between probes; 0: none.")
    probe_batch_tokens: int = Field(16_384, ge=1, description="Padded tokens per probe forward.")
    checkpoint_every: int = Field(0, ge=0, description="Steps between resume states; 0: none.")
    record_steps: tuple[int, ...] = Field(
        (), description="0-based steps whose update is recorded for force analysis."
    )
    # Omitted from stage keys when unset, so that earlier results without them keep their keys.
    keep_steps: bool = Field(
        False,
        exclude_if=lambda keeps: not keeps,
        description="Keep every step on this machine, if all take at most 2 GiB, for the ledger of "
        "them, which then needs not train again.",
    )
    alarm: AlarmConfig | None = Field(
        None,
        exclude_if=lambda alarm: alarm is None,
        description="Alarm on the probes' squeezing gap; it can end training early.",
    )
    best: BestConfig | None = Field(
        None,
        exclude_if=lambda best: best is None,
        description="Keep the model of the best probe instead of the last step's.",
    )

    without: tuple[str, ...] = Field(
        (),
        exclude_if=lambda ids: not ids,
        description="Ids of examples that are left out of their batches; the others keep batch and "
        "weight, so that the difference is what these did.",
    )
    ledger: InRunLedgerConfig | None = Field(
        None,
        exclude_if=lambda ledger: ledger is None,
        description="Accounts of single steps while training runs: who moved the watched answers.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        engine, dose = self.engine, self.designed_dose
        rho = getattr(self.objective, "logits_sam", None)
        share = self.batch_size // engine.ranks
        unsplit = engine.kind == "deepspeed" and engine.zero_stage == 0
        accounted = bool(self.record_steps) or self.ledger is not None
        check_settings(
            (
                bool(self.batch_size % engine.ranks),
                "batch_size",
                self.batch_size,
                f"must be a multiple of engine.ranks = {engine.ranks}",
            ),
            (
                bool(share and share % min(self.micro_batch_size, share)),
                "micro_batch_size",
                self.micro_batch_size,
                f"must divide a rank's share of the batch, {share} examples",
            ),
            (
                self.schedule != "constant" and self.warmup_steps >= self.steps,
                "warmup_steps",
                self.warmup_steps,
                f"leaves none of the {self.steps} steps to the {self.schedule} schedule; set fewer",
            ),
            (
                engine.kind == "plain" and engine.ranks != 1,
                "engine.ranks",
                engine.ranks,
                "the plain engine runs in one process; set 1, or kind: deepspeed",
            ),
            (
                engine.dtype == "bf16" and unsplit,
                "engine.zero_stage",
                0,
                "bf16 keeps fp32 master weights in ZeRO's optimizer; set 1, 2 or 3",
            ),
            (
                engine.offload and (engine.kind == "plain" or engine.zero_stage == 0),
                "engine.offload",
                True,
                "is ZeRO's; set kind: deepspeed and zero_stage: 1, 2 or 3",
            ),
            (
                self.alarm is not None and not self.probe_every,
                "probe_every",
                0,
                "the alarm needs probes; set 1 or more",
            ),
            (
                self.best is not None and not self.probe_every,
                "probe_every",
                0,
                "best needs probes; set 1 or more",
            ),
            (
                engine.dtype == "bf16" and dose is not None,
                "engine.dtype",
                "bf16",
                "a designed dose needs differences that bf16 rounds away; set fp32, or leave "
                "objective.designed_dose out",
            ),
            (
                engine.ranks > 1
                and engine.zero_stage == 3
                and (dose is not None or self.chooses_dose),
                "engine.zero_stage",
                3,
                "a dose that steps choose needs the whole weights on every rank; set 0, 1 or 2, or "
                "leave objective.designed_dose and objective.calibrated out",
            ),
            (
                rho is not None and accounted,
                "objective.logits_sam",
                rho,
                "steps whose gradient is taken beside their weights have no forces there; set "
                "record_steps: [] and no ledger",
            ),
            (
                rho is not None and engine.kind == "deepspeed" and engine.zero_stage == 3,
                "engine.zero_stage",
                3,
                "logits_sam needs the whole output layer on every rank; set 0, 1 or 2",
            ),
            (
                bool(self.without) and accounted,
                "without",
                list(self.without),
                "steps without some of their examples are not recorded; set record_steps: [] and "
                "no ledger",
            ),
        )
        if accounted:
            self.check_replayable()
        late = [step for step in self.record_steps if not 0 <= step < self.steps]
        if late:
            raise ConfigError("record_steps", late, f"must lie in 0..{self.steps - 1}")
        return self

    def check_replayable(self) -> None:
        """Raises `ConfigError` if a step's update cannot be computed again to the bit."""
        if not self.engine.reproducible:
            raise ConfigError(
                "engine.reproducible",
                False,
                "its steps cannot be replayed; set true, or record_steps: [] and ledger: null",
            )

    @property
    def designed_dose(self) -> DesignedDoseConfig | GroupDoseConfig | None:
        """How the doses of pushes are chosen at every step, if they are."""
        return getattr(self.objective, "designed_dose", None)

    @property
    def chooses_dose(self) -> bool:
        """Whether steps choose the dose."""
        return getattr(self.objective, "chooses_dose", False)

    @property
    def micro_examples(self) -> int:
        """Examples per forward on one rank."""
        return min(self.micro_batch_size, self.batch_size // self.engine.ranks)

    @property
    def accumulation(self) -> int:
        """Forwards per optimizer step on one rank."""
        return self.batch_size // self.engine.ranks // self.micro_examples

    def probes_at(self, step: int) -> bool:
        """Whether a probe is due after `step` updates."""
        return bool(self.probe_every) and (step % self.probe_every == 0 or step == self.steps)

    @property
    def probes(self) -> int:
        """How often a whole training probes: before its first step, and after its last one."""
        return -(-self.steps // self.probe_every) + 1 if self.probe_every else 0

    def observes(self, step: int) -> bool:
        """Whether the ledger accounts for the update that follows `step` others."""
        return self.ledger is not None and step % self.ledger.every == 0

    def checkpoints_after(self, step: int) -> bool:
        """Whether a resume state is due after the update at 0-based `step`."""
        done = step + 1
        return self.checkpoint_every > 0 and done % self.checkpoint_every == 0 and done < self.steps


class TrainConfig(LoopConfig):
    """Settings of a training on rows of answers."""

    objective: RowObjectiveConfig = SFTConfig()


class GroupTrainConfig(LoopConfig):
    """Settings of a training on groups of completions that the policy samples as it learns.

    An example, as `batch_size` and `micro_batch_size` count them, is a prompt with its
    completions. An objective on rows trains on pairs: in each group the completion with the highest
    reward is chosen and the one with the lowest rejected; `spin` pairs the row's own answer with
    the first completion, whatever their rewards. The reference is the initial policy; for `spin`
    and `sppo` it is the policy at the beginning of the rollout.
    """

    objective: ObjectiveConfig = GRPOConfig()
    rewards: tuple[RewardConfig, ...] = Field(
        (RewardConfig(name="world_answer"),), description="Their weighted sum is the reward."
    )
    completions: int = Field(8, description="Completions sampled per prompt: a group.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature.")
    max_new_tokens: int = Field(64, ge=1, description="Longest completion.")
    stop: tuple[str, ...] = Field((), description="Texts that end a completion.")
    sample_batch_size: int = Field(64, ge=1, description="Completions generated at once.")
    updates_per_rollout: int = Field(
        1, ge=1, description="Optimizer steps per rollout; each has its own prompts."
    )
    right_from: float = Field(
        1.0, description="Lowest reward of a right completion: for accuracy, pass@k, nthr."
    )
    resample: int = Field(
        0,
        ge=0,
        exclude_if=lambda times: not times,
        description="How often other prompts take the place of those whose completions have equal "
        "rewards and so teach nothing (DAPO's dynamic sampling).",
    )

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        dose, longest = self.designed_dose, getattr(self.objective, "max_tokens", None)
        kl_cov = getattr(self.objective, "kl_cov", None)
        check_settings(
            (
                self.completions < (1 if isinstance(self.objective, SPINConfig) else 2),
                "completions",
                self.completions,
                "rewards are compared within a group; sample 2 or more per prompt",
            ),
            (self.seed < 0, "seed", self.seed, "sampling needs a seed of 0 or more"),
            (
                isinstance(dose, DesignedDoseConfig),
                "objective.designed_dose",
                dose and dose.per,
                "protects other rows' chosen answers; sampled groups have none; leave it out, or "
                "train on rows",
            ),
            (
                self.chooses_dose,
                "objective.calibrated",
                True,
                "is for pairs of a data set; leave it out, or train on rows",
            ),
            (not self.rewards, "rewards", [], "name at least one reward"),
            (
                kl_cov is not None and self.updates_per_rollout == 1,
                "updates_per_rollout",
                self.updates_per_rollout,
                "kl_cov holds tokens to the policy that sampled them, which the only update of a "
                "rollout begins at; set updates_per_rollout to 2 or more, or leave kl_cov out",
            ),
            (
                longest not in (None, self.max_new_tokens),
                "objective.max_tokens",
                longest,
                f"must be max_new_tokens = {self.max_new_tokens}, the sampling's limit",
            ),
        )
        return self

    @property
    def sampling(self) -> SampleConfig:
        """How completions are sampled."""
        return SampleConfig(
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            batch_size=self.sample_batch_size,
            seed=self.seed,
            stop=self.stop,
        )
