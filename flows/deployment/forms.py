"""The form of a deployment: fields with the types, limits and descriptions of settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model, model_validator
from pydantic.fields import FieldInfo

from dynolab.errors import ConfigError
from flows.flow import FlowParameters, Form
from flows.parameters.defaults import choices, default_of
from flows.parameters.parse import STUDIES, as_change, parse_parameters, read_study
from flows.parameters.validation import Parameters

OTHER_TRIED, SHARED = "other_values", "shared_settings"


class FilledForm(BaseModel):
    """Fields of every form; those derived from settings change the study file's.

    Prefect refuses values outside a setting's limits, and where `dynolab up` runs it, what the
    settings' own checks refuse (`checks`). All else that cannot work ends the run before any work,
    with a message that names the setting.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    settings: ClassVar[Mapping[str, str]] = {}
    """Field → dotted name of its setting."""

    tried: ClassVar[Mapping[str, str]] = {}
    """Field → dotted name of the setting that a sweep tries the field's values of."""

    study_file: str
    other_settings: tuple[str, ...] = Field(
        (), description="Any other setting as key=value, such as sft.clip_norm=5."
    )
    study_text: str = Field(
        "", description="A whole study file (YAML), in place of the file chosen above."
    )
    fresh: bool = Field(
        False, description="Compute every stage again, even if the store has its result."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_fields(cls, fields: Any) -> Any:
        """Prefect may send null for fields that were not filled."""
        if isinstance(fields, Mapping):
            return {name: value for name, value in fields.items() if value not in (None, "")}
        return fields

    def parameters(self, kind: type[Parameters], fixed: Sequence[str] = ()) -> Parameters:
        """The flow parameters that the form describes; `fixed` are settings as key=value.

        **Raises** `ConfigError` for a file outside deploy/studies, and for settings that cannot
        work.
        """
        changes = [*fixed, *self._changes(), *self.other_settings]
        parameters = self._parsed(kind, changes)
        if shared := getattr(self, SHARED, ()):
            # Beside those of the file, which a change of `settings` would replace.
            before: tuple[str, ...] = getattr(parameters, "settings", ())
            return parameters.model_copy(update={"settings": (*before, *shared)})
        return parameters

    def _parsed(self, kind: type[Parameters], changes: Sequence[str]) -> Parameters:
        if self.study_text:
            return parse_parameters(kind, self.study_text, "study_text", changes)
        file = (STUDIES / self.study_file).resolve()
        if not file.is_relative_to(STUDIES.resolve()):
            raise ConfigError(
                "study_file", self.study_file, "is outside deploy/studies; choose a file in it"
            )
        return parse_parameters(kind, read_study(file), file.name, changes, folder=STUDIES)

    def _changes(self) -> Iterator[str]:
        filled = {
            name: value for name in self.settings if (value := getattr(self, name)) is not None
        }
        if name := filled.pop("objective", None):
            yield as_change(self.settings["objective"].removesuffix(".name"), {"name": name})
        for field, value in filled.items():
            yield as_change(self.settings[field], value)
        tried = [f"{setting}={getattr(self, field)}" for field, setting in self.tried.items()]
        if space := [
            f"{setting}: {{{values if ':' in values else f'values: [{values}]'}}}"
            for setting, _, values in (
                change.partition("=") for change in [*tried, *getattr(self, OTHER_TRIED, ())]
            )
            if values
        ]:
            yield f"space={{{', '.join(space)}}}"


def derive_form(title: str, form: Form, parameters: type[BaseModel], file: str) -> type[FilledForm]:
    """Derives the form's class: each field has its setting's type, limits and description.

    A field has neither null as a type, which Prefect's interface shows as a second tab, nor a
    default of null, which its server does not take for a default. Its description ends with the
    value that the form's file has.
    """
    filed = parse_parameters(parameters, read_study(STUDIES / file), file, form.fixed)
    settings = {"name": "name", "project": "project", **form.fields}
    about = {
        "study_file": "Settings to start from; a file of deploy/studies. An empty field below "
        "leaves the file's setting.",
        "data_source": "The built-in world, a local file (give its Data Path below), or a data set "
        "of the Hub (give its Hub Name).",
        "objective": "The loss; its other settings start from their defaults.",
        OTHER_TRIED: "Values of any other setting of the study, one or several, such as "
        "sft.steps=20, 40. With the fields above they replace the file's `space`.",
        SHARED: "Settings of the study that all trials have, beside those of the file, such as "
        "preference.steps=60.",
        "other_settings": "Any other setting of the sweep itself, such as seed=1; those of "
        "the study are Other Values and Shared Settings.",
    } | {
        name: f"Values of {setting} to try, separated by commas. To draw from a range, ten "
        "trials unless Trials says otherwise, write it like this: low: 1, high: 10; evenly "
        "in logarithms: low: 0.01, high: 1, log: true; whole numbers: low: 1, high: 10, "
        "integer: true."
        for name, setting in form.tried.items()
    }
    fields: dict[str, Any] = {
        "study_file": (str, Field(file, description=about["study_file"])),
        **{
            name: (
                str,
                Field(
                    "", description=f"{about[name]} {_filed(file, _tried(filed, setting))}".strip()
                ),
            )
            for name, setting in form.tried.items()
        },
    }
    if form.tried:
        fields |= {
            name: (tuple[str, ...], Field((), description=about[name]))
            for name in (OTHER_TRIED, SHARED, "other_settings")
        }
    for name, setting in settings.items():
        owner = FlowParameters if name in FlowParameters.model_fields else parameters
        kind, description, limits = _setting(owner, setting)
        if name == "objective":
            kind = Literal[form.objectives] if form.objectives else kind
        value = reduce(default_of, setting.split("."), filed)
        parts = [about.get(name, description), form.notes.get(name, ""), _filed(file, value)]
        if name == "baseline" and (arms := default_of(filed, "arms")):
            parts.append(
                f"{file} has the arms {', '.join(arms)}; to leave one out, add to Other Settings "
                f"arms.{[*arms][-1]}=null."
            )
        description = " ".join(filter(None, parts))
        fields[name] = (
            kind,
            Field(default_factory=lambda: None, description=description, json_schema_extra=limits),
        )
    derived: type[FilledForm] = create_model(
        title, __base__=FilledForm, __doc__=form.about, **fields
    )
    derived.settings, derived.tried = settings, form.tried
    return derived


def _filed(file: str, value: Any) -> str:
    """The end of a field's description: what the file has; nothing for settings without a value."""
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        value = ", ".join(map(str, value))
    is_shown = isinstance(value, bool | int | float | str) and value != ""
    return f"{file} has {value}." if is_shown else ""


def _tried(sweep: Any, setting: str) -> str:
    """The values of a setting that a sweep's file tries."""
    dimension = sweep.space.get(setting)
    if dimension is None:
        return ""
    return ", ".join(map(str, dimension.values or (dimension.low, "…", dimension.high)))


def _setting(parameters: type[BaseModel], setting: str) -> tuple[Any, str, dict[str, Any]]:
    """Type, description and limits of a setting, by its dotted name, in any class that may hold it.

    The limits, those of all classes, are JSON schema's.
    """
    fields = [FieldInfo(annotation=parameters)]
    for part in setting.split("."):
        fields = [inner for field in fields for inner in _under(field.annotation, part)]
    if not fields:
        raise ValueError(f"{parameters.__name__} has no setting {setting}")
    kinds = [kind for field in fields for kind in choices(field.annotation)]
    values = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    description = next((field.description for field in fields if field.description), "")
    kind = Literal[tuple(dict.fromkeys(values))] if values else kinds[0]
    limits = [
        limit
        for limit in fields[0].metadata
        if isinstance(limit, Ge | Gt | Le | Lt) and all(limit in field.metadata for field in fields)
    ]
    limited: Any = Annotated[kind, *limits] if limits else None
    return kind, description, TypeAdapter(limited).json_schema() if limits else {}


def _under(annotation: Any, part: str) -> Iterator[FieldInfo]:
    """The fields called `part` in an annotation's settings classes and dictionaries of them."""
    for kind in choices(annotation):
        if get_origin(kind) is dict:
            yield FieldInfo(annotation=get_args(kind)[1])
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            yield kind.model_fields[part]
