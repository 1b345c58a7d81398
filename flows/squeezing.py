"""The chapter on squeezing: random cases, a language model's answers pushed down → page."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.training.config import EngineConfig, TrainConfig
from flows.checkpoints import (
    ModelConfig,
    check_data_named_once,
    check_named,
    import_steps,
    named_data,
    resolved_sources,
)
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow
from tasks.base import BaseConfig
from tasks.push import PUSH, PushConfig
from tasks.runtime.pipeline import Step
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.shared.chapter_page import ChapterPageConfig
from tasks.shared.data_and_base import base_step, seeded_base, seeded_data
from tasks.softmax import SOFTMAX, SoftmaxConfig
from tasks.squeezing_page import SQUEEZING_PAGE
from tasks.training import SFT

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
        TrainConfig(engine=EngineConfig(kind="plain", ranks=1)),
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
    named = named_data(parameters.study, parameters.data_result, parameters.model_fields_set)
    models, existing = resolved_sources(
        {MODEL: parameters.model},
        platform,
        study=parameters.study,
        data=named,
        needed=("train.jsonl",),
    )
    update: dict[str, object] = dict(models)
    if named is None:
        update["data"] = resolve_data(seeded.data)
    return seeded.model_copy(update=update), existing


def squeezing_steps(parameters: SqueezingParameters, existing: Collection[str]) -> list[Step]:
    """The steps in order; names in `existing` are results, which need no step."""
    page = ChapterPageConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
    )
    pushed = _push(parameters, existing)
    shown = {"softmax": "softmax"} | ({"push": "push"} if pushed else {})
    return [
        Step("softmax", SOFTMAX, parameters.softmax),
        *pushed,
        Step("squeezing-page", SQUEEZING_PAGE, page, shown),
    ]


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


def plan(parameters: SqueezingParameters, platform: Platform) -> Plan:
    """Plans the random cases, the pushes on a language model, if set, and the page."""
    known, existing = resolved_squeezing(parameters, platform)
    return Plan(known, squeezing_steps(known, existing), existing)


FLOW = StagedFlow(
    "squeezing",
    SqueezingParameters,
    plan,
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
