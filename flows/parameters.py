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
from dynolab.data.sources.config import SOURCE_NAME
from dynolab.errors import ConfigError
from flows.flow import NAME
from tasks.runtime.launch.devices import host_devices
from tasks.runtime.system.secret_files import holds_secret

STUDIES = Path(__file__).resolve().parents[1] / "deploy" / "studies"
"""Folder of the built-in studies."""

Parameters = TypeVar("Parameters", bound=BaseModel)

_VARIABLE = re.compile(r"\$\{(\w+)\}")
# PyYAML does not wrap the errors of its date and number constructors.
_YAML_ERRORS = (yaml.YAMLError, ValueError, AttributeError, RecursionError)

MOST_BYTES = 2**20
"""Of a study file: YAML takes half a minute for ten times as much."""

MOST_NODES = 100_000
"""Values of a study file, those counted that aliases repeat."""

LARGEST = 2**43
"""Of whole numbers: seeds are multiplied by a million, and torch takes 64 bits."""

LARGEST_FLOAT = 3.4e38
"""float32 holds no larger number."""


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
    if file.exists() and not (file.is_file() or file.is_dir()):
        remedy = "is a pipe or a device; write what comes from it into a file, and give that"
        raise ConfigError("config", str(file), remedy)
    try:
        if file.stat().st_size > MOST_BYTES:
            remedy = f"is larger than {MOST_BYTES:,} bytes; give a study file, not data"
            raise ConfigError("config", str(file), remedy)
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
        content = yaml.load(text, _Loader) or {}
    except _YAML_ERRORS as error:
        raise _unreadable(origin, error) from error
    if not isinstance(content, dict):
        raise ConfigError("config", origin, "must hold settings by name (key: value)")
    return content


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses settings given twice, and aliases that never end."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count_nodes(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        given: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in given:
                    problem = f"{key.value} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                given.add(key.value)
        return super().construct_mapping(node, deep)


def _count_nodes(node: yaml.Node, counts: dict[yaml.Node, int | None]) -> int:
    """How many values a node holds when every alias is written out, in `counts`, too."""
    if node in counts:
        known = counts[node]
        if known is None:
            problem = "an alias stands for what holds it"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return known
    counts[node], count = None, 1
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        for part in item if isinstance(item, tuple) else (item,):
            count += _count_nodes(part, counts)
    if count > MOST_NODES:
        problem = f"aliases make more than {MOST_NODES:,} values of it"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counts[node] = count
    return count


def _check_numbers(value: Any, field: str) -> None:
    """Raises `ConfigError` for a number that no setting can take."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check_numbers(inner, _join(field, str(name)))
    elif isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
        raise ConfigError(field, value, "give a finite number that float32 holds")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(field, value, f"give a whole number of at most {LARGEST:,}")


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


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
    _check_numbers(content, "")
    content = with_defaults(kind, _with_variables(content, ""))
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
        parameters = kind.model_validate(content)
        _check_read(parameters, content, "")
        return parameters
    except ValidationError as error:
        problems = error.errors(include_url=False)
        field, value, remedy = _describe(problems[0], content)
        # Every type that a value may have complains for itself.
        alike = [each["msg"] for each in problems if _describe(each, content)[0] == field]
        if len(alike) > 1:
            kinds = (message.removeprefix("Input should be ") for message in alike)
            remedy = f"Input should be {', or '.join(dict.fromkeys(kinds))}"
        more = error.error_count() - len(alike)
        remedy += f" (and {more} more)" if more else ""
        raise ConfigError(field or kind.__name__, value, remedy) from error
    except ConfigError as error:  # from a model_validator: its field is relative to its own part
        part = ".".join(_failing_part(kind, content))
        raise ConfigError(_join_paths(part, error.field), error.value, error.remedy) from error


def _check_read(value: Any, content: Any, field: str) -> None:
    """Raises `ConfigError` for what was read as a number and should not be.

    That is yes or no, which are 1 and 0 for Python, and a number written as text that is too large.

    **Arguments:** `value`: what `content` was read as.
    """
    if isinstance(content, Mapping):
        for name, inner in content.items():
            read = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            _check_read(read.get(name), inner, _join(field, str(name)))
    elif isinstance(content, list) and isinstance(value, list | tuple):
        for number, (read, inner) in enumerate(zip(value, content, strict=False)):
            _check_read(read, inner, _join(field, str(number)))
    elif isinstance(content, bool) and isinstance(value, int | float) and value is not content:
        raise ConfigError(field, content, "give a number")
    else:
        _check_numbers(value, field)


def _describe(problem: ErrorDetails, content: Any) -> tuple[str, Any, str]:
    """Field, value and remedy of a pydantic error."""
    field = _written_path(problem["loc"], content, missing=problem["type"] == "missing")
    remedy, given = problem["msg"], problem["input"]
    if problem["type"] == "extra_forbidden":
        remedy = "there is no such setting; look for a misspelling, or leave it out"
    elif problem["type"] == "string_pattern_mismatch":
        remedy = _PATTERNS.get(problem["ctx"]["pattern"], remedy)
    elif problem["type"] == "missing" and not isinstance(given, Mapping):
        remedy = "holds too few values; give one more"
    elif problem["type"].startswith("union_tag_"):
        choice, given = problem["ctx"]["discriminator"].strip("'"), problem["ctx"].get("tag")
        field = f"{field}.{choice}"
        remedy = f"say which it is with {choice}: …"
        if problem["type"] == "union_tag_invalid":
            remedy = f"choose one of {problem['ctx']['expected_tags']}"
    return field, given, remedy


_FIRST = "the first a letter"
_PATTERNS = {
    NAME: "use letters, digits, blanks and . _ -, the first a letter or digit",
    SOURCE_NAME: "use letters, digits and . _ -",
    r"^[a-z][a-z0-9_-]{0,31}$": f"use up to 32 lower-case letters, digits, - and _, {_FIRST}",
    r"^[a-z][a-z0-9-]{0,31}$": f"use up to 32 lower-case letters, digits and -, {_FIRST}",
    r"\S": "give a text that is not blank",
}
"""Pattern of a text → what to write."""


def _written_path(location: Sequence[str | int], content: Any, *, missing: bool) -> str:
    """The dotted field as written: without the union tags that pydantic puts into its path.

    **Arguments:** `missing`: whether the last part is a setting that was not given.
    """
    parts, inner = [], content
    for number, part in enumerate(location):
        if isinstance(inner, list):
            if not isinstance(part, int) or part >= len(inner):
                continue
            inner = inner[part]
        elif isinstance(inner, dict):
            is_last = number == len(location) - 1
            if part not in inner and (not missing if is_last else inner.get("name") == part):
                continue
            inner = inner.get(part, {})
        else:  # a value, and the types that it may have
            continue
        parts.append(str(part))
    return ".".join(parts)


def _failing_part(kind: type[BaseModel], content: dict[str, Any]) -> list[str]:
    """Path to the innermost settings whose own validation fails."""
    for name, field in kind.model_fields.items():
        part = content.get(name)
        inner = _settings_class(field.annotation, part) if isinstance(part, dict) else None
        if isinstance(part, dict) and inner is not None:
            try:
                inner.model_validate(part)
            except ConfigError:
                return [name, *_failing_part(inner, part)]
            except ValidationError:
                continue
    return []


def _settings_class(annotation: Any, given: Mapping[str, Any]) -> type[BaseModel] | None:
    """The class of the settings that a field may hold, by what is given; None: it holds others."""
    for kind in choices(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel) and not _is_another(kind, given):
            return kind
    return None


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
    default: Any = kind
    for name in parents:
        default = _default_of(default, name)
        if inner.get(name) is None:  # also a key without a value
            inner[name] = _written(default) if isinstance(default, Mapping) else {}
        inner = inner[name]
        if not isinstance(inner, dict):
            raise ConfigError(
                "--set", change, f"{name} holds a value, not settings; give a setting of its own"
            )
    try:
        inner[leaf] = yaml.load(text, _Loader)
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
        return {
            name: _with_variables(inner, _join(field, str(name))) for name, inner in value.items()
        }
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


def with_defaults(
    kind: type[BaseModel], content: Mapping[str, Any], defaults: BaseModel | None = None
) -> dict[str, Any]:
    """Settings merged into their defaults: a setting changes what it names, and nothing beside it.

    `preference: {steps: 30}` keeps the other settings that the default of `preference` sets. A
    section whose `name` differs from the default's, such as another objective, starts from its own
    defaults.

    **Arguments:** `defaults`: the settings that they are merged into; by default those of `kind`.
    """
    fields = kind.model_fields
    return {
        name: _completed(_default_of(defaults or kind, name), fields[name].annotation, value)
        if name in fields
        else value
        for name, value in content.items()
    }


def _default_of(owner: Any, name: str) -> Any:
    """The default of a class's field, or what an object or a dictionary has under the name."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        info = owner.model_fields.get(name)
        return info.get_default(call_default_factory=True) if info else None
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


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


def _completed(default: Any, annotation: Any, given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if isinstance(default, BaseModel) and not _is_another(type(default), given):
        return {**_written(default), **with_defaults(type(default), given, default)}
    return _within(annotation, given, with_defaults)


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
    found = _settings_class(annotation, value)
    changed: dict[str, Any] = value if found is None else change(found, value)
    return changed
