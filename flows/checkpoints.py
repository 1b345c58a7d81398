"""Models that a flow analyses: results of stages, folders, Hub names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from dynolab.data.source_checks import FilePath, FolderOrName
from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError, under_field
from flows.flow import Step, existing_result, finished, results_by_digest
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.base import BASE, BaseConfig, resolve_base
from tasks.data import DATA
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageConfig, StageResult

StudyFile = Annotated[
    FilePath | None,
    Field(description="Study file whose finished steps can be given as results."),
]


class ModelConfig(StageConfig):
    """A model: a stage's result, or a folder or Hub name."""

    result: str | None = Field(
        None,
        description="A result that holds a model: MLflow's tag `store.address`, or "
        "`<stage>/<key>` with the key's first digits, or the name of a step of `study`.",
    )
    model: FolderOrName | None = Field(None, description="A model folder, or a Hub name.")
    revision: str | None = Field(None, description="Branch, tag or commit of a Hub name.")

    @property
    def base(self) -> BaseConfig:
        """Settings of the base stage that imports the folder or Hub name into the store."""
        assert self.model is not None, "results need no import"
        return BaseConfig(source=self.model, revision=self.revision)


class CheckpointConfig(ModelConfig):
    """A model to analyse, or a step of its training."""

    step: int | None = Field(
        None,
        ge=0,
        description="A recorded step of a training's result: analyses that step's weights in the "
        "metric of its realised optimizer step.",
    )


AnyModel = TypeVar("AnyModel", bound=ModelConfig)


def check_named(field: str, model: ModelConfig) -> None:
    """Raises `ConfigError` unless exactly one of `result` and `model` is set."""
    if (model.result is None) == (model.model is None):
        raise ConfigError(
            field,
            model.result or "nothing",
            "give either result (of a stage) or model (a folder or Hub name)",
        )


def resolved_models(
    models: Mapping[str, AnyModel], results: Mapping[str, StageResult], platform: Platform
) -> tuple[dict[str, AnyModel], dict[str, StageResult]]:
    """Pins models to their current content; also returns the results that they name, by field.

    **Raises** `ConfigError` for an unknown model, and for a step that was not recorded.
    """
    resolved, existing = dict(models), {}
    for field, model in models.items():
        if model.result is not None:
            existing[field] = named_result(f"{field}.result", model.result, results, platform)
            _check_result(field, model, existing[field], platform)
        else:
            with under_field(f"{field}.model"):
                commit = resolve_base(model.base).revision
            resolved[field] = model.model_copy(update={"revision": commit})
    return resolved, existing


def resolved_sources(
    parameters: Any, models: Mapping[str, AnyModel], platform: Platform, needed: Sequence[str]
) -> tuple[dict[str, Any], dict[str, StageResult]]:
    """Pins models and data to their current content, and looks up the results that need no step.

    **Arguments:** `parameters`: with `data`, `data_result` and `study`, whose finished steps can be
    named; a study's data are the default. `models` by field. `needed`: files of a data result.

    **Returns:** the models by field, and `data` unless a result is named; the results by field, a
    data result as `data`.

    **Raises** `ConfigError` for an unknown result, or one without the needed files.
    """
    results = results_of(parameters.study, platform)
    checkpoints, existing = resolved_models(models, results, platform)
    resolved: dict[str, Any] = dict(checkpoints)
    named = parameters.data_result
    if named is None and parameters.study is not None and "data" not in parameters.model_fields_set:
        named = "data"
    if named is None:
        resolved["data"] = resolve_data(parameters.data)
    else:
        result = existing["data"] = named_result("data_result", named, results, platform)
        files = platform.store.manifest(result.address, result.digest).files
        if missing := [name for name in needed if name not in files]:
            raise ConfigError(
                "data_result",
                named,
                f"a result of stage {result.stage} holds no {missing[0]}; name a data stage's",
            )
    return resolved, existing


def check_data_named_once(data_result: str | None, fields_set: Collection[str]) -> None:
    """Raises `ConfigError` for data given both as settings and as a result."""
    if data_result is not None and "data" in fields_set:
        raise ConfigError("data_result", data_result, "give data or data_result, not both")


def import_steps(
    models: Mapping[str, ModelConfig],
    existing: Collection[str],
    *,
    data: DataConfig | None = None,
) -> list[Step]:
    """The steps that import data, if given, and models; `existing` names need no step."""
    steps = [] if data is None or "data" in existing else [Step("data", DATA, data)]
    imported = [name for name in models if name not in existing]
    return steps + [Step(name, BASE, models[name].base) for name in imported]


def results_of(study: str | None, platform: Platform) -> dict[str, StageResult]:
    """The finished steps of a study file, by name."""
    if study is None:
        return {}
    return finished(study_steps(resolved(load_parameters(StudyParameters, Path(study)))), platform)


def named_result(
    field: str, reference: str, results: Mapping[str, StageResult], platform: Platform
) -> StageResult:
    """Looks up a result by the name of a step, its address, or `<stage>/<key>`."""
    if reference in results:
        return results[reference]
    if "/" not in reference:
        names = ", ".join(results)
        remedy = f"choose one of {names}" if names else "run the study first"
        raise ConfigError(field, reference, f"the study has no such finished step; {remedy}")
    return existing_result(platform.store, field, reference)


def inputs_of(result: StageResult, platform: Platform) -> dict[str, StageResult | None]:
    """What a result's stage read, by the names of its inputs; None: no longer in the store."""
    results = results_by_digest(platform.store)
    parents = platform.store.manifest(result.address, result.digest).parents
    return {name: results.get(digest) for name, digest in parents.items()}


def _check_result(field: str, model: ModelConfig, result: StageResult, platform: Platform) -> None:
    files = platform.store.manifest(result.address, result.digest).files
    if not any(path.startswith("model/") for path in files):
        raise ConfigError(
            f"{field}.result",
            model.result,
            f"a result of stage {result.stage} holds no model; name a base or training result",
        )
    if not isinstance(model, CheckpointConfig) or model.step is None:
        return
    steps = {int(path.split("/")[1][5:]) for path in files if path.startswith("forces/step-")}
    if model.step not in steps:
        recorded = ", ".join(map(str, sorted(steps))) or "none; set record_steps of its training"
        raise ConfigError(
            f"{field}.step", model.step, f"was not recorded; recorded steps: {recorded}"
        )
