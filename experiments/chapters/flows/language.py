"""The chapters that train language models: squeezing, and the kernel's stability."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig
from dynolab.training.config import EngineConfig, OptimizerConfig, TrainConfig
from experiments.chapters.flows.digits import page_step
from experiments.chapters.stages import PUSH, SOFTMAX, PushConfig, SoftmaxConfig
from flows.checkpoints import (
    ModelConfig,
    check_data_named_once,
    check_named,
    import_steps,
    resolved_sources,
)
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from flows.probes import base_step
from tasks.base import (
    BaseConfig,
    check_model_fits_data,
    resolve_base,
    seeded_base,
    seeded_data,
)
from tasks.data import DATA
from tasks.kernel import KERNEL, KernelConfig, KernelJob
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.training import PREFERENCE, SFT

ALONE = EngineConfig(kind="plain", ranks=1)
MODEL = "model"


class SqueezingParameters(FlowParameters):
    """Parameters of the chapter on squeezing."""

    name: Name = Field("squeezing", description="Name of the run and of its page's file.")
    seed: int = Field(0, ge=0, description="Seed of the random cases and the built-in model.")
    softmax: SoftmaxConfig = SoftmaxConfig()
    push: PushConfig | None = Field(
        PushConfig(), description="The part on a language model; null: none."
    )
    study: FilePath | None = Field(
        None, description="Study file whose finished steps can be given as results."
    )
    model: ModelConfig | None = Field(
        None, description="The language model; default: the built-in one, trained here."
    )
    data: DataConfig = DataConfig()
    data_result: str | None = Field(
        None, description="Result of a data stage to use instead, in the format of model.result."
    )
    base: BaseConfig = Field(BaseConfig(), description="Training of the built-in model.")
    sft: TrainConfig = Field(
        TrainConfig(engine=ALONE),
        description="Its finetuning on the chosen answers.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> SqueezingParameters:
        if self.model is not None:
            check_named(MODEL, self.model)
        elif self.data.source != "world" or self.data_result is not None:
            raise ConfigError(
                MODEL,
                None,
                "the built-in model has only the vocabulary of the built-in world; give a model "
                "for other rows",
            )
        elif self.base.source != "builtin":
            raise ConfigError(
                "base.source",
                self.base.source,
                "must be builtin; give another model as model.model",
            )
        check_data_named_once(self.data_result, self.model_fields_set)
        return self


def resolved_squeezing(
    parameters: SqueezingParameters, platform: Platform
) -> tuple[SqueezingParameters, dict[str, StageResult]]:
    """Sets all seeds, pins the sources to their current content, and looks up the results that they
    name.

    **Raises** `ConfigError` for an unknown result, or one without the needed files.
    """
    seed = {"seed": parameters.seed}
    seeded = parameters.model_copy(
        update={
            "softmax": parameters.softmax.model_copy(update=seed),
            "data": seeded_data(parameters.data, parameters.seed),
            "base": seeded_base(parameters.base, parameters.seed),
            "sft": parameters.sft.model_copy(update=seed),
        }
    )
    if parameters.push is None:
        return seeded, {}
    if parameters.model is None:
        return seeded.model_copy(update={"data": resolve_data(seeded.data)}), {}
    models = {MODEL: parameters.model}
    update, existing = resolved_sources(parameters, models, platform, ("train.jsonl",))
    if "data" in update:
        update["data"] = resolve_data(seeded.data)
    return seeded.model_copy(update=update), existing


def _push(parameters: SqueezingParameters, existing: Collection[str]) -> list[Step]:
    """The steps that make or import rows and model, unless they exist, and the pushes."""
    if parameters.push is None:
        return []
    models = {MODEL: parameters.model} if parameters.model is not None else {}
    steps = import_steps(models, existing, data=parameters.data)
    if parameters.model is None:
        steps += [
            base_step("base", parameters.base, data="data"),
            Step(MODEL, SFT, parameters.sft, {"data": "data", "model": "base"}),
        ]
    return [*steps, Step("push", PUSH, parameters.push, {"data": "data", "model": MODEL})]


def plan_squeezing(parameters: SqueezingParameters, platform: Platform) -> Plan:
    """Plan the random cases, the pushes on a language model, if set, and the page."""
    resolved, existing = resolved_squeezing(parameters, platform)
    softmax, pushed = Step("softmax", SOFTMAX, resolved.softmax), _push(resolved, existing)
    page = page_step("squeezing", resolved, [softmax, *pushed[-1:]])
    return Plan(resolved, [softmax, *pushed, page], existing)


SQUEEZING = StagedFlow(
    "squeezing",
    SqueezingParameters,
    plan_squeezing,
    page="squeezing-page",
    file="squeezing.html",
    forms={
        "squeezing": Form(
            "Where pushed-down probability goes, in one softmax and in a language model.",
            {
                "study": "study",
                "data_result": "data_result",
                "seed": "seed",
                "cases": "softmax.cases",
                "model_result": "model.result",
                "model": "model.model",
                "data_source": "data.source",
                "data_path": "data.path",
                "pairs": "push.pairs",
                "fall": "push.fall",
            },
        )
    },
)


class CouplingParameters(FlowParameters):
    """Parameters of the chapter on the kernel's stability."""

    name: Name = Field("coupling", description="Name of the run and of its page's file.")
    seed: int = Field(0, ge=0, description="Seed of data, model and trainings.")
    data: DataConfig = DataConfig()
    base: BaseConfig = Field(BaseConfig(), description="The model that SFT starts from.")
    sft: TrainConfig = Field(
        TrainConfig(engine=ALONE), description="SFT; its learning rate is multiplied by rates."
    )
    preference: TrainConfig = Field(
        TrainConfig(objective=DPOConfig(), optimizer=OptimizerConfig(name="sgd"), engine=ALONE),
        description="Preference training after each SFT.",
    )
    rates: tuple[float, ...] = Field(
        (0.25, 1.0, 4.0), min_length=1, description="Multiples of SFT's learning rate."
    )
    readings: int = Field(
        3, ge=1, description="Points of each SFT at which the kernel is read, the last at its end."
    )
    kernel: KernelConfig = KernelConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> CouplingParameters:
        check_model_fits_data(self.base, self.data)
        if len(set(self.rates)) < len(self.rates) or min(self.rates) <= 0:
            raise ConfigError("rates", self.rates, "name every positive multiple once")
        if self.readings > self.sft.steps:
            raise ConfigError(
                "readings", self.readings, f"SFT has {self.sft.steps} steps: choose at most as many"
            )
        return self


def _rate_steps(parameters: CouplingParameters, number: int) -> list[Step]:
    """SFT at one rate, preference training after it, and the kernel along both."""
    sft, dpo = f"sft-{number}", f"dpo-{number}"
    steps = parameters.sft.steps
    read = [steps * reading // parameters.readings for reading in range(1, parameters.readings)]
    optimizer = parameters.sft.optimizer
    rate = optimizer.learning_rate * parameters.rates[number]
    training = parameters.sft.model_copy(
        update={
            "optimizer": optimizer.model_copy(update={"learning_rate": rate}),
            "record_steps": tuple(read),
        }
    )
    labels = {
        "start": "base",
        **{f"step-{step}": sft for step in read},
        "sft": sft,
        "preference": dpo,
    }
    kernel = KernelJob(
        **dict(parameters.kernel),
        labels=tuple(labels),
        steps={f"step-{step}": step for step in read},
    )
    reads: Mapping[str, str] = {"data": "data", "model": "base"}
    return [
        Step(sft, SFT, training, reads),
        Step(dpo, PREFERENCE, parameters.preference, {"data": "data", "model": sft}),
        Step(
            f"kernel-{number}",
            KERNEL,
            kernel,
            {**reads, **{f"model_{label}": source for label, source in labels.items()}},
        ),
    ]


def plan_coupling(parameters: CouplingParameters, _: Platform) -> Plan:
    """Plan both trainings at every rate, the kernel along each, and the page."""
    seed = {"seed": parameters.seed}
    resolved = parameters.model_copy(
        update={
            "data": resolve_data(seeded_data(parameters.data, parameters.seed)),
            "base": resolve_base(seeded_base(parameters.base, parameters.seed)),
            "sft": parameters.sft.model_copy(update=seed),
            "preference": parameters.preference.model_copy(update=seed),
        }
    )
    trained = [step for n in range(len(resolved.rates)) for step in _rate_steps(resolved, n)]
    rate = resolved.sft.optimizer.learning_rate
    page = page_step(
        "coupling",
        resolved,
        [step for step in trained if step.stage is KERNEL],
        learning_rates=tuple(rate * multiple for multiple in resolved.rates),
    )
    first = [Step("data", DATA, resolved.data), base_step("base", resolved.base, data="data")]
    return Plan(resolved, [*first, *trained, page])


COUPLING = StagedFlow(
    "coupling",
    CouplingParameters,
    plan_coupling,
    page="coupling-page",
    file="coupling.html",
    forms={
        "coupling": Form(
            "Whether the same answers stay coupled, at several learning rates and under DPO.",
            {
                "seed": "seed",
                "rates": "rates",
                "readings": "readings",
                "observed_pairs": "kernel.observed_pairs",
                "updating_pairs": "kernel.updating_pairs",
                "data_source": "data.source",
                "data_path": "data.path",
            },
        )
    },
)
