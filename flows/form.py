"""Derives the form of a deployment from the flow's parameters: described, in order, in sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator
from pydantic.fields import FieldInfo

from dynolab.errors import ConfigError
from dynolab.objectives.registry import AnyConfig
from flows.flow import Form
from flows.parameters import (
    STUDIES,
    Parameters,
    as_change,
    parse_parameters,
    read_settings,
    read_study,
)
from flows.written import choices

_SPELLINGS = {"sft": "SFT", "hub": "Hub"}
_MORE = ("project", "other_settings", "study_text", "fresh")

SECTIONS = {
    "model_and_data": ("Model and data", "What learns, and from which rows."),
    "loss": ("Objective", "The loss, and its settings: each is for the losses that it names."),
    "training": ("Training", "How long it trains, how fast, and how often it is probed."),
    "more": ("More", "Rarely needed: any other setting, a whole study file, another experiment."),
}
"""Section of a form → its title and a sentence. Fields that belong to none stand beside them."""

_OBJECTIVES: dict[str, type[BaseModel]] = {
    config.model_fields["name"].default: config for config in get_args(AnyConfig)
}

SOURCE_FIELDS = {
    "model": "base.source",
    "data_source": "data.source",
    "data_path": "data.path",
    "hub_name": "data.hub_name",
    "data_format": "data.format",
}
"""Fields of a form that choose the model and the rows."""


def tidy_schema(schema: dict[str, Any], form: type[FilledForm]) -> None:
    """Puts the schema's fields into sections, in the order declared, each with a single type.

    Omits null types and null defaults: Prefect's interface shows `X or null` as two tabs, and its
    server treats a default of null as no default.
    """
    fields: dict[str, dict[str, Any]] = schema["properties"]
    ordered = sorted(fields, key=lambda name: name in _MORE)
    sections: dict[str, Any] = {}
    schema["properties"] = sections
    for name in ordered:
        field = fields[name]
        for choice in field.pop("anyOf", ()):
            if choice != {"type": "null"}:
                field.update(choice)
        if field.get("default", ...) is None:
            del field["default"]
        field["title"] = _title(name)
        beside, section = sections, form.section_of(name)
        if section is not None:
            title, about = SECTIONS[section]
            empty = {"title": title, "description": about, "type": "object", "properties": {}}
            sections.setdefault(section, {**empty, "additionalProperties": False})
            beside = sections[section]["properties"]
        beside[name] = field
    for properties in (sections, *(part.get("properties", {}) for part in sections.values())):
        for position, part in enumerate(properties.values()):
            part["position"] = position


def _title(name: str) -> str:
    words = " ".join(_SPELLINGS.get(word, word) for word in name.split("_"))
    return words[0].upper() + words[1:]


_SECTION_OF = {
    **dict.fromkeys(("base", "data", "texts"), "model_and_data"),
    **dict.fromkeys(("sft", "preference", "training"), "training"),
}
"""First part of a setting's dotted name → the section of its field."""


class FilledForm(BaseModel):
    """Fields of every form. Each further field sets a setting; if empty, the study file's is kept.

    Values are checked against the settings' limits when the run starts, before any work, and the
    message names the setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=tidy_schema)
    settings: ClassVar[Mapping[str, str]] = {"name": "name", "project": "project"}
    """Field → dotted name of its setting."""
    objective_setting: ClassVar[str | None] = None
    """Setting that holds the objective to which the form's fields apply."""

    @model_validator(mode="before")
    @classmethod
    def _out_of_sections(cls, filled: Any) -> Any:
        """Takes the fields out of their sections; code may give them without any."""
        if not isinstance(filled, Mapping):
            return filled
        fields: dict[str, Any] = {}
        for name, value in filled.items():
            fields |= value if name in SECTIONS and isinstance(value, Mapping) else {name: value}
        return fields

    @classmethod
    def section_of(cls, field: str) -> str | None:
        """The section in which a field stands, if it stands in one."""
        if field in _MORE:
            return "more"
        setting = cls.settings.get(field, "")
        if cls.objective_setting and setting.startswith(f"{cls.objective_setting}."):
            return "loss"
        return _SECTION_OF.get(setting.partition(".")[0])

    def in_sections(self) -> dict[str, Any]:
        """The filled fields in their sections, as Prefect keeps them."""
        filled: dict[str, Any] = {}
        for field, value in self.model_dump(mode="json", exclude_none=True).items():
            section = self.section_of(field)
            (filled if section is None else filled.setdefault(section, {}))[field] = value
        return filled

    study_file: str = Field(
        description="Settings to start from; a file of deploy/studies. The fields below change "
        "them, and an empty field leaves the file's setting."
    )
    name: str | None = Field(None, description="Name of the run in MLflow, and of its page.")
    project: str | None = Field(None, description="MLflow experiment.")
    other_settings: list[str] | None = Field(
        None, description="Any other setting as key=value, such as sft.clip_norm=5."
    )
    study_text: str | None = Field(
        None, description="A whole study file (YAML), in place of the file chosen above."
    )
    fresh: bool = Field(
        False, description="Compute every stage again, even if the store has its result."
    )

    def parameters(self, kind: type[Parameters], fixed: Sequence[str] = ()) -> Parameters:
        """The flow parameters that the form describes; `fixed` are settings as key=value.

        **Raises** `ConfigError` for a file outside deploy/studies, for a field that the objective
        does not take, and for settings that cannot work.
        """
        text, origin = self._study()
        changes = [*fixed, *self._changes(text, origin), *(self.other_settings or ())]
        folder = None if self.study_text else STUDIES
        return parse_parameters(kind, text, origin, changes, folder=folder)

    def _study(self) -> tuple[str, str]:
        """The text of the study file, and its name in messages."""
        if self.study_text:
            return self.study_text, "study_text"
        file = (STUDIES / self.study_file).resolve()
        if not file.is_relative_to(STUDIES.resolve()):
            raise ConfigError(
                "study_file", self.study_file, "is outside deploy/studies; choose a file in it"
            )
        return read_study(file), file.name

    def _changes(self, text: str, origin: str) -> Iterator[str]:
        filled = {
            field: value
            for field in self.settings
            if (value := getattr(self, field)) not in (None, "")
        }
        if self.objective_setting is not None:
            yield from self._objective_changes(filled, read_settings(text, origin))
        for field, value in filled.items():
            yield as_change(self.settings[field], value)

    def _objective_changes(self, filled: dict[str, Any], study: Mapping[str, Any]) -> Iterator[str]:
        """Changes to the objective's settings; rejects fields that the objective does not have.

        If the form picks another objective than the file, it starts from its defaults.
        """
        setting = str(self.objective_setting)
        chosen, in_file = filled.pop("objective", None), _inner(study, setting).get("name")
        name = chosen or in_file
        if chosen is not None and chosen != in_file:
            yield as_change(setting, {"name": chosen})
        for field, value in filled.items():
            dotted = self.settings[field]
            if dotted.startswith(f"{setting}.") and isinstance(name, str):
                _check_taken(field, value, dotted.removeprefix(f"{setting}."), name)


def derive_form(title: str, form: Form, parameters: type[BaseModel]) -> type[FilledForm]:
    """Derives the form's class: each field has its setting's type and description."""
    fields: dict[str, Any] = {}
    for field, setting in form.fields.items():
        kind, description = _setting(parameters, setting, form)
        fields[field] = (kind | None, Field(None, description=description))
    derived: type[FilledForm] = create_model(
        title, __base__=FilledForm, __doc__=form.about, **fields
    )
    derived.settings = {**FilledForm.settings, **form.fields}
    derived.objective_setting = form.objective
    return derived


_Fields = list[tuple[type[BaseModel] | None, FieldInfo]]
"""Settings of the same name, each with the class that declares it."""


def _setting(parameters: type[BaseModel], setting: str, form: Form) -> tuple[Any, str]:
    """Type and description of the setting with this dotted name."""
    fields: _Fields = [(None, FieldInfo(annotation=parameters))]
    under, takers = "", ""
    for part in setting.split("."):
        fields = [step for _, info in fields for step in _under(info.annotation, part)]
        if form.objective is not None and under == form.objective:
            fields, takers = _offered(fields, form.objectives)
        under = f"{under}.{part}".removeprefix(".")
    if not fields:
        raise ValueError(f"{parameters.__name__} has no setting {setting}")
    kinds = list(dict.fromkeys(kind for _, info in fields for kind in choices(info.annotation)))
    values = [value for kind in kinds for value in get_args(kind) if get_origin(kind) is Literal]
    if setting == f"{form.objective}.name":
        chosen = form.objectives or tuple(values)
        return Literal[
            chosen
        ], "The loss; if it is not the file's, its other settings start from their defaults."
    description = next((info.description for _, info in fields if info.description), "")
    return Literal[tuple(values)] if values else kinds[0], description + takers


def _offered(fields: _Fields, objectives: tuple[str, ...]) -> tuple[_Fields, str]:
    """Fields of the objectives that a form offers, and a note on which have them, if not all."""
    names = [owner.model_fields["name"].default if owner else "" for owner, _ in fields]
    offered = [name for name in names if not objectives or name in objectives]
    kept = [field for name, field in zip(names, fields, strict=True) if name in offered]
    taken_by_all = len(offered) == len(objectives or _OBJECTIVES)
    return kept, "" if taken_by_all else f" For {', '.join(offered)}."


def _under(annotation: Any, part: str) -> Iterator[tuple[type[BaseModel] | None, FieldInfo]]:
    """The fields called `part` in an annotation's settings classes and dictionaries of them."""
    for kind in choices(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if part in kind.model_fields:
                yield kind, kind.model_fields[part]
        elif get_origin(kind) is dict:
            yield None, FieldInfo(annotation=get_args(kind)[1])


def _check_taken(field: str, value: Any, setting: str, objective: str) -> None:
    first = setting.partition(".")[0]
    known = _OBJECTIVES.get(objective)
    if known is None or first in known.model_fields:
        return
    takers = [name for name, config in _OBJECTIVES.items() if first in config.model_fields]
    raise ConfigError(
        field,
        value,
        f"{objective} does not take it; leave it empty, or choose an objective that does: "
        f"{', '.join(takers)}",
    )


def _inner(settings: Mapping[str, Any], dotted: str) -> Mapping[str, Any]:
    """The settings under a dotted name; empty if there are none."""
    inner: Any = settings
    for part in dotted.split("."):
        inner = inner.get(part) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}
