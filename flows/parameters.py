"""Parameters of the flows, and how a study file with changes becomes them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dynolab.data.sources import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.objectives.dpo import DPOConfig
from dynolab.training.config import TrainConfig
from tasks.base import BaseConfig, resolve_base
from tasks.forces import ForcesConfig
from tasks.probe import ProbeConfig

Parameters = TypeVar("Parameters", bound=BaseModel)
Contrast = Literal["on_policy", "flat_world"]

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class StudyParameters(BaseModel):
    """What a person chooses when starting a study."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field("builtin", description="Name of the study: its parent run in MLflow.")
    project: str = Field("dynolab", description="MLflow experiment.")
    seed: int = Field(0, ge=0, description="Of data, weights and batches alike.")
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()
    sft: TrainConfig = TrainConfig()
    preference: TrainConfig = TrainConfig(objective=DPOConfig())
    probe: ProbeConfig = ProbeConfig()
    forces: ForcesConfig = ForcesConfig()
    contrasts: tuple[Contrast, ...] = Field(
        (),
        description="The same preference training where squeezing should not show: rejected "
        "answers sampled from the policy (on_policy), or answers without a preferred style "
        "(flat_world, for the built-in world).",
    )

    @model_validator(mode="after")
    def _can_be_contrasted(self) -> StudyParameters:
        if "flat_world" in self.contrasts and self.data.source != "world":
            raise ConfigError(
                "contrasts", "flat_world", "needs data.source: world; leave it out elsewhere"
            )
        return self


def load_parameters(kind: type[Parameters], file: Path, changes: Sequence[str] = ()) -> Parameters:
    """Reads a study file and applies changes of the form `dotted.key=value`.

    `${DYNOLAB_…}` in a text stands for that environment variable; others are left alone, so that
    a study file cannot bring a secret into parameters. YAML is read safely: it holds data only.

    Raises ConfigError naming the field, its value and the remedy.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        raise ConfigError("config", str(file), "no such file; name a study file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("config", str(file), f"is not readable as YAML: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError("config", str(file), "must hold settings by name")
    for change in changes:
        _apply(content, change)
    return validated(kind, _with_variables(content, "config"))


def validated(kind: type[Parameters], content: Any) -> Parameters:
    """Parameters from plain data; what does not fit is named field by field."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        # Tagged unions put the tag into the path of the field; people never wrote it there.
        field = ".".join(str(part) for part in first["loc"]) or kind.__name__
        remedy = first["msg"]
        if first["type"] == "extra_forbidden":
            remedy = "there is no such setting; look for a misspelling, or leave it out"
        more = error.error_count() - 1
        remedy += f" (and {more} more)" if more else ""
        raise ConfigError(field, first["input"], remedy) from error


def _apply(content: dict[str, Any], change: str) -> None:
    dotted, equals, text = change.partition("=")
    if not equals or not dotted:
        raise ConfigError("--set", change, "write it as key=value, such as sft.steps=20")
    *parents, leaf = dotted.split(".")
    inner: Any = content
    for name in parents:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError("--set", change, f"{name} holds a value and no settings")
    inner[leaf] = yaml.safe_load(text)


def _with_variables(value: Any, field: str) -> Any:
    if isinstance(value, dict):
        return {name: _with_variables(inner, f"{field}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_variables(inner, field) for inner in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _variable(match, field), value)
    return value


def _variable(match: re.Match[str], field: str) -> str:
    name = match[1]
    if not name.startswith("DYNOLAB_"):
        return match[0]
    found = os.environ.get(name)
    if not found:
        raise ConfigError(field, match[0], f"set the environment variable {name}")
    return found


def resolved(parameters: StudyParameters) -> StudyParameters:
    """The parameters with the study's seed everywhere, and sources at the content they have now.

    Raises ConfigError for a source that is not there.
    """
    seed = {"seed": parameters.seed}
    base, data = parameters.base, parameters.data
    return parameters.model_copy(
        update={
            "data": resolve_data(
                data.model_copy(update=seed | {"world": data.world.model_copy(update=seed)})
            ),
            "base": resolve_base(
                base.model_copy(update=seed | {"training": base.training.model_copy(update=seed)})
            ),
            "sft": parameters.sft.model_copy(update=seed),
            "preference": parameters.preference.model_copy(update=seed),
        }
    )
