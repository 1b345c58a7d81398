"""A flat form: a study file, and those of its settings that people change most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from dynolab.errors import ConfigError
from dynolab.objectives.registry import AnyConfig
from flows.parameters import as_change, parse_parameters, read_settings, read_study

STUDIES = Path(__file__).resolve().parents[2] / "deploy" / "studies"

_WORDS = {"sft": "SFT", "hub": "Hub"}
_LAST = ("project", "other_settings", "study_text", "fresh")

_OBJECTIVES: dict[str, type[BaseModel]] = {
    one.model_fields["name"].default: one for one in get_args(AnyConfig)
}

Parameters = TypeVar("Parameters", bound=BaseModel)


@dataclass(frozen=True)
class At:
    """The dotted setting of a study file that a form's field stands for."""

    setting: str


def for_people(schema: dict[str, Any]) -> None:
    """Fields in the order in which they are written, none of them a choice between types.

    An empty field is left out rather than null: Prefect's interface shows `X or null` as two tabs,
    and its server takes null for a field without a default.
    """
    fields: dict[str, dict[str, Any]] = schema["properties"]
    ordered = [name for name in fields if name not in _LAST] + [n for n in _LAST if n in fields]
    for position, name in enumerate(ordered):
        field = fields[name]
        for choice in field.pop("anyOf", ()):
            if choice != {"type": "null"}:
                field.update(choice)
        if field.get("default", ...) is None:
            del field["default"]
        field["position"], field["title"] = position, _title(name)


def _title(name: str) -> str:
    words = " ".join(_WORDS.get(word, word) for word in name.split("_"))
    return words[0].upper() + words[1:]


class Form(BaseModel):
    """What every form has; each further field is `At` a setting, and empty means the file's.

    Limits are those of the settings: they are checked when the run starts, before anything works,
    and the message names the setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=for_people)
    objective_at: ClassVar[str | None] = None
    """Setting that holds the objective which the form's fields belong to."""

    study_file: str = Field(
        description="Settings to start from; a file of deploy/studies. The fields below change "
        "them, and an empty field leaves the file's setting."
    )
    name: Annotated[str | None, At("name")] = Field(
        None, description="Name of the run in MLflow, and of its page."
    )
    project: Annotated[str | None, At("project")] = Field(None, description="MLflow experiment.")
    other_settings: list[str] | None = Field(
        None, description="Any other setting as key=value, such as sft.clip_norm=5."
    )
    study_text: str | None = Field(
        None, description="A whole study file (YAML), in place of the one chosen above."
    )
    fresh: bool = Field(False, description="Compute every stage again, whatever the store has.")

    def parameters(self, kind: type[Parameters], fixed: Sequence[str] = ()) -> Parameters:
        """The parameters of a flow that the form describes; `fixed` are settings as key=value.

        **Raises** `ConfigError` for a file outside deploy/studies, for a field that the objective
        does not take, and for settings that cannot work.
        """
        text, origin = self._study()
        changes = [*fixed, *self._changes(text, origin), *(self.other_settings or ())]
        return parse_parameters(kind, text, origin, changes)

    def _study(self) -> tuple[str, str]:
        """The text of the study file, and what to call it in messages."""
        if self.study_text:
            return self.study_text, "study_text"
        file = (STUDIES / self.study_file).resolve()
        if not file.is_relative_to(STUDIES.resolve()):
            raise ConfigError("study_file", self.study_file, "lies outside deploy/studies")
        return read_study(file), file.name

    def _changes(self, text: str, origin: str) -> Iterator[str]:
        given = {
            field: (place.setting, value)
            for field, about in type(self).model_fields.items()
            for place in about.metadata
            if isinstance(place, At) and (value := getattr(self, field)) not in (None, "")
        }
        if self.objective_at is not None:
            yield from self._objective_changes(given, read_settings(text, origin))
        for setting, value in given.values():
            yield as_change(setting, value)

    def _objective_changes(
        self, given: dict[str, tuple[str, Any]], study: Mapping[str, Any]
    ) -> Iterator[str]:
        """Another objective than the file's starts from its defaults; refuses what is not its."""
        place = f"{self.objective_at}."
        chosen = given.pop("objective", (None, None))[1]
        written = _inner(study, str(self.objective_at)).get("name")
        name = chosen or written
        if chosen is not None and chosen != written:
            yield as_change(str(self.objective_at), {"name": chosen})
        for field, (setting, value) in given.items():
            if setting.startswith(place) and isinstance(name, str):
                _check_taken(field, value, setting.removeprefix(place), name)


def _check_taken(field: str, value: Any, setting: str, objective: str) -> None:
    first = setting.partition(".")[0]
    known = _OBJECTIVES.get(objective)
    if known is None or first in known.model_fields:
        return
    takers = [name for name, one in _OBJECTIVES.items() if first in one.model_fields]
    raise ConfigError(
        field,
        value,
        f"{objective} does not take it; leave it empty, or choose an objective that does: "
        f"{', '.join(takers)}",
    )


def _inner(settings: Mapping[str, Any], dotted: str) -> Mapping[str, Any]:
    """The settings under a dotted name; none where there are none."""
    inner: Any = settings
    for part in dotted.split("."):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}
