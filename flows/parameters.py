"""Parses study files, with changes, into the parameters of flows.

A file is merged into the defaults, and its relative paths start from its own folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dynolab.data.source_checks import OnDisk
from dynolab.errors import ConfigError
from tasks.runtime.launch.devices import host_devices
from tasks.runtime.system.secret_files import holds_secret

STUDIES = Path(__file__).resolve().parents[1] / "deploy" / "studies"
"""Folder of the built-in studies."""

Parameters = TypeVar("Parameters", bound=BaseModel)

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# PyYAML does not wrap the errors of its date and number constructors.
_YAML_ERRORS = (yaml.YAMLError, ValueError, AttributeError, RecursionError)


def load_parameters(
    kind: type[Parameters], file: Path | None, changes: Sequence[str] = ()
) -> Parameters:
    """Reads a study file, if given, and applies changes of the form `dotted.key=value`.

    **Raises** `ConfigError` with the field, its value and the remedy.
    """
    if file is None:
        return parse_parameters(kind, "", "no file", changes)
    file = study_file(file)
    return parse_parameters(kind, read_study(file), str(file), changes, folder=file.parent)


def study_file(file: Path) -> Path:
    """The file as given, or the built-in study of that name where no such file exists."""
    is_name = file.parent == Path() and not file.exists()
    return STUDIES / file if is_name and (STUDIES / file).is_file() else file


def read_study(file: Path) -> str:
    """The text of a study file. **Raises** `ConfigError` if it cannot be read.

    The built-in study has one rank where there is one GPU.
    """
    try:
        text = file.read_text(encoding="utf-8")
        alone = file.resolve() == STUDIES / "builtin.yaml" and len(host_devices()) == 1
        return text.replace("ranks: 2", "ranks: 1") if alone else text
    except OSError as error:
        raise ConfigError(
            "config", str(file), f"cannot be read ({error.strerror}); give a readable study file"
        ) from error
    except UnicodeDecodeError as error:
        raise _unreadable(str(file), error) from error


def read_settings(text: str, origin: str) -> dict[str, Any]:
    """A study's settings by name, from YAML, which can hold only data."""
    try:
        content = yaml.safe_load(text) or {}
    except _YAML_ERRORS as error:
        raise _unreadable(origin, error) from error
    if not isinstance(content, dict):
        raise ConfigError("config", origin, "must hold settings by name (key: value)")
    return content


def parse_parameters(
    kind: type[Parameters],
    text: str,
    origin: str,
    changes: Sequence[str] = (),
    *,
    folder: Path | None = None,
) -> Parameters:
    """Parses a study's text with changes into parameters; `origin` is its name in messages.

    Both are merged into the defaults (`with_defaults`). Relative paths in the text start from
    `folder`, by default the current one; those in `changes` always start from the current one.

    Replaces `${DYNOLAB_…}` with that environment variable, and leaves other variables alone.
    Rejects values that may hold a login or key, so that no study file copies it into parameters.

    **Raises** `ConfigError` with the field, its value and the remedy.
    """
    content = read_settings(text, origin)
    if folder is not None:
        content = with_paths(kind, content, folder)
    for change in changes:
        _apply(kind, content, change)
    content = with_defaults(kind, _with_variables(content, "config"))
    _record_within(content, {change.partition("=")[0] for change in changes})
    return validated(kind, content)


def _record_within(content: dict[str, Any], changed: set[str]) -> None:
    """Moves recorded steps behind the end of a training that was made shorter to its last step."""
    for name in changed:
        section, _, leaf = name.rpartition(".")
        training = reduce(lambda inner, part: inner.get(part) or {}, section.split("."), content)
        recorded: Any = training.get("record_steps")
        if leaf == "steps" and recorded and f"{section}.record_steps" not in changed:
            with suppress(TypeError):  # validation names what is no number
                last = training["steps"] - 1
                training["record_steps"] = sorted({min(step, last) for step in recorded})


def _unreadable(origin: str, error: Exception) -> ConfigError:
    return ConfigError(
        "config", origin, f"cannot be read as YAML ({_yaml_problem(error)}); fix it there"
    )


def validated(kind: type[Parameters], content: Any) -> Parameters:
    """Parameters from plain data. **Raises** `ConfigError` for the first field that is invalid."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        field, value, remedy = _describe(error.errors(include_url=False)[0], content)
        more = error.error_count() - 1
        remedy += f" (and {more} more)" if more else ""
        raise ConfigError(field or kind.__name__, value, remedy) from error
    except ConfigError as error:  # from a model_validator: its field is relative to its own part
        part = ".".join(_failing_part(kind, content))
        raise ConfigError(_join_paths(part, error.field), error.value, error.remedy) from error


def _describe(problem: ErrorDetails, content: Any) -> tuple[str, Any, str]:
    """Field, value and remedy of a pydantic error."""
    field = _written_path(problem["loc"], content)
    if problem["type"] == "extra_forbidden":
        remedy = "there is no such setting; look for a misspelling, or leave it out"
        return field, problem["input"], remedy
    if problem["type"] == "union_tag_invalid":
        choice = problem["ctx"]["discriminator"].strip("'")
        remedy = f"choose one of {problem['ctx']['expected_tags']}"
        return f"{field}.{choice}", problem["ctx"]["tag"], remedy
    if problem["type"] == "union_tag_not_found":
        choice = problem["ctx"]["discriminator"].strip("'")
        return f"{field}.{choice}", None, f"say which it is with {choice}: …"
    return field, problem["input"], problem["msg"]


def _written_path(location: Sequence[str | int], content: Any) -> str:
    """The dotted field as written: without the union tags that pydantic puts into its path."""
    parts, inner = [], content
    for number, part in enumerate(location):
        last = number == len(location) - 1
        written = not isinstance(inner, dict) or part in inner or last
        if not written and inner.get("name") == part:
            continue
        parts.append(str(part))
        inner = inner.get(part) if isinstance(inner, dict) else None
    return ".".join(parts)


def _failing_part(kind: type[BaseModel], content: dict[str, Any]) -> list[str]:
    """Path to the innermost settings whose own validation fails."""
    for name, field in kind.model_fields.items():
        inner, part = _settings_class(field.annotation), content.get(name)
        if inner is not None and isinstance(part, dict):
            try:
                inner.model_validate(part)
            except ConfigError:
                return [name, *_failing_part(inner, part)]
            except ValidationError:
                continue
    return []


def _settings_class(annotation: Any) -> type[BaseModel] | None:
    """The settings class of a field that holds settings or, optionally, None; else None."""
    options = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    kinds = [
        option for option in options if isinstance(option, type) and issubclass(option, BaseModel)
    ]
    return kinds[0] if kinds else None


def _join_paths(part: str, field: str) -> str:
    """Joins two dotted paths; where they overlap, the overlap is written once."""
    before, after = part.split(".") if part else [], field.split(".")
    shared = [n for n in range(1, len(after) + 1) if before[-n:] == after[:n]]
    return ".".join([*before, *after[max(shared, default=0) :]])


def as_change(setting: str, value: Any) -> str:
    """The change `setting=value` with the value as JSON."""
    return f"{setting}={json.dumps(value, ensure_ascii=False)}"  # YAML has no surrogate pairs


def _apply(kind: type[BaseModel], content: dict[str, Any], change: str) -> None:
    dotted, equals, text = change.partition("=")
    *parents, leaf = names = dotted.split(".")
    if not equals or not all(names):
        raise ConfigError("--set", change, "write it as key=value, such as sft.steps=20")
    inner: Any = content
    for depth, name in enumerate(parents, start=1):
        if inner.get(name) is None:  # also a key without a value
            inner[name] = default_settings(kind, tuple(parents[:depth]))
        inner = inner[name]
        if not isinstance(inner, dict):
            raise ConfigError(
                "--set", change, f"{name} holds a value, not settings; give a setting of its own"
            )
    try:
        inner[leaf] = yaml.safe_load(text)
    except _YAML_ERRORS as error:
        raise ConfigError(
            "--set", change, f"the value cannot be read as YAML ({_yaml_problem(error)}); quote it"
        ) from error


def _yaml_problem(error: Exception) -> str:
    """The problem and its place in the text, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


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
    value = os.environ.get(name)
    if not value:
        raise ConfigError(field, match[0], f"set the environment variable {name}")
    if holds_secret(value, name):
        raise ConfigError(
            field, match[0], "holds a login or key, which parameters would store; leave it out"
        )
    return value


def with_defaults(kind: type[BaseModel], content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings merged into their defaults: a setting changes what it names, and nothing beside it.

    `preference: {steps: 30}` keeps the other settings that the default of `preference` sets. A
    section whose `name` differs from the default's, such as another objective, starts from its own
    defaults.
    """
    return {
        name: _completed(kind.model_fields[name], value) if name in kind.model_fields else value
        for name, value in content.items()
    }


def default_settings(kind: type[BaseModel], path: tuple[str, ...]) -> dict[str, Any]:
    """The settings by name that stand at a dotted path by default; empty if there are none."""
    default: Any = kind
    for name in path:
        if isinstance(default, type) and issubclass(default, BaseModel):
            info = default.model_fields.get(name)
            default = info.get_default(call_default_factory=True) if info else None
        elif isinstance(default, Mapping):
            default = default.get(name)
        else:
            default = getattr(default, name, None)
    written = _written(default) if isinstance(default, Mapping) else {}
    assert isinstance(written, dict)
    return written


def with_paths(kind: type[BaseModel], content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Settings in which relative paths (`OnDisk`) start from `folder`."""
    return {
        name: _located(kind.model_fields[name], value, folder)
        if name in kind.model_fields
        else value
        for name, value in content.items()
    }


def choices(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None."""
    if get_origin(annotation) is Annotated:
        yield from choices(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for inner in get_args(annotation):
            yield from choices(inner)
    elif annotation is not NoneType:
        yield annotation


def _completed(info: FieldInfo, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    default = info.get_default(call_default_factory=True)
    if isinstance(default, BaseModel) and not _is_another(type(default), given):
        written = _written(default)
        fields = {
            name: FieldInfo(annotation=field.annotation, default=getattr(default, name))
            for name, field in type(default).model_fields.items()
        }
        inner = {
            name: _completed(fields[name], value) if name in fields else value
            for name, value in given.items()
        }
        return {**written, **inner}
    return _within(info.annotation, given, with_defaults)


def _written(value: Any) -> Any:
    """A default as a study file would hold it: what it sets, and what tells its kind."""
    if isinstance(value, BaseModel):
        return {
            name: _written(getattr(value, name))
            for name, info in type(value).model_fields.items()
            if name in value.model_fields_set or _tag(info) is not None
        }
    if isinstance(value, Mapping):
        return {name: _written(inner) for name, inner in value.items()}
    return value


def _tag(info: FieldInfo) -> Any:
    """The only value of a field that tells its class from others, such as an objective's name."""
    values = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    return values[0] if len(values) == 1 else None


def _is_another(kind: type[BaseModel], given: Mapping[str, Any]) -> bool:
    """Whether the settings are tagged as those of another class."""
    return any(
        name in given and _tag(info) not in (None, given[name])
        for name, info in kind.model_fields.items()
    )


def _located(info: FieldInfo, value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return _within(
            info.annotation, value, lambda kind, content: with_paths(kind, content, folder)
        )
    if isinstance(value, str) and value != info.default:
        for marker in _metadata(info):
            if isinstance(marker, OnDisk):
                return marker.beside(folder, value)
    return value


def _metadata(info: FieldInfo) -> Iterator[Any]:
    """What is annotated to a field, or to one of the types that it allows."""
    yield from info.metadata
    for kind in get_args(info.annotation):
        if get_origin(kind) is Annotated:
            yield from get_args(kind)[1:]


def _within(annotation: Any, value: dict[str, Any], change: Any) -> dict[str, Any]:
    """Applies `change(class, settings)` to settings, or to every value of a dictionary of them."""
    for kind in choices(annotation):
        if get_origin(kind) is dict:
            inner = get_args(kind)[1]
            return {
                name: _within(inner, entry, change) if isinstance(entry, dict) else entry
                for name, entry in value.items()
            }
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not _is_another(kind, value):
            changed: dict[str, Any] = change(kind, value)
            return changed
    return value
