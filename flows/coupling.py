"""The chapter on the kernel: SFT at several rates and DPO after each → is the coupling stable?"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig
from dynolab.training.config import EngineConfig, OptimizerConfig, TrainConfig
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from tasks.base import BaseConfig, resolve_base
from tasks.coupling_page import COUPLING_PAGE, CouplingPageConfig
from tasks.data import DATA
from tasks.kernel import KERNEL, KernelConfig, KernelJob
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.shared.data_and_base import (
    base_step,
    check_model_fits_data,
    seeded_base,
    seeded_data,
)
from tasks.training import PREFERENCE, SFT

ALONE = EngineConfig(kind="plain", ranks=1)


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


def coupling_steps(parameters: CouplingParameters) -> list[Step]:
    """The steps in order: both trainings and the kernel at every rate, and the page."""
    first = [
        Step("data", DATA, parameters.data),
        base_step("base", parameters.base, data="data"),
    ]
    arms = [_arm(parameters, number) for number in range(len(parameters.rates))]
    rate = parameters.sft.optimizer.learning_rate
    page = CouplingPageConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
        learning_rates=tuple(rate * multiple for multiple in parameters.rates),
    )
    shown = {step.name: step.name for arm in arms for step in arm if step.stage is KERNEL}
    return [
        *first,
        *(step for arm in arms for step in arm),
        Step("coupling-page", COUPLING_PAGE, page, shown),
    ]


def _arm(parameters: CouplingParameters, number: int) -> list[Step]:
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
    labels = {"start": "base", **{f"step-{step}": sft for step in read}}
    labels |= {"sft": sft, "preference": dpo}
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


def plan(parameters: CouplingParameters, platform: Platform) -> Plan:
    """Plans the trainings at every rate, the kernel along each, and the page."""
    seed = {"seed": parameters.seed}
    known = parameters.model_copy(
        update={
            "data": resolve_data(seeded_data(parameters.data, parameters.seed)),
            "base": resolve_base(seeded_base(parameters.base, parameters.seed)),
            "sft": parameters.sft.model_copy(update=seed),
            "preference": parameters.preference.model_copy(update=seed),
        }
    )
    return Plan(known, coupling_steps(known))


FLOW = StagedFlow(
    "coupling",
    CouplingParameters,
    plan,
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
