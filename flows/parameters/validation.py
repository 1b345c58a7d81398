"""Parameters from plain data, or one message that names the first setting that cannot work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dynolab.data.sources.config import SOURCE_NAME
from dynolab.errors import ConfigError
from flows.flow import NAME
from flows.parameters.defaults import choices, settings_class

Parameters = TypeVar("Parameters", bound=BaseModel)

LARGEST = 2**43
"""Of whole numbers: seeds are multiplied by a million, and torch takes 64 bits."""

LARGEST_FLOAT = 3.4e38
"""float32 holds no larger number."""


def check_numbers(value: Any, field: str) -> None:
    """Raises `ConfigError` for a number that no setting can take."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            check_numbers(inner, dotted(field, str(name)))
    elif isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
        raise ConfigError(field, value, "give a finite number that float32 holds")
    elif isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(field, value, f"give a whole number of at most {LARGEST:,}")


def dotted(field: str, name: str) -> str:
    """The dotted name of a setting in a field."""
    return f"{field}.{name}" if field else name


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
        alike = [problem["msg"] for problem in problems if _describe(problem, content)[0] == field]
        if len(alike) > 1:
            kinds = (message.removeprefix("Input should be ") for message in alike)
            remedy = f"Input should be {', or '.join(dict.fromkeys(kinds))}"
        more = error.error_count() - len(alike)
        if problems[0]["type"] == "extra_forbidden" and (names := similar_settings(kind, field)):
            remedy = f"there is no such setting; did you mean {' or '.join(names)}?"
        remedy += f" (and {more} more)" if more else ""
        raise ConfigError(field or kind.__name__, value, remedy) from error
    except ConfigError as error:  # from a model_validator: its field is relative to its own part
        part = ".".join(_failing_part(kind, content))
        raise ConfigError(_join_paths(part, error.field), error.value, error.remedy) from error


SUGGESTED = 3
"""Similar settings that a message names."""


def similar_settings(kind: type[BaseModel], field: str) -> list[str]:
    """Settings that a misspelt one may stand for: of the same name elsewhere, or spelt alike."""
    known = list(dict.fromkeys(_settings_of(kind)))  # classes of a choice share some
    _, _, last = field.rpartition(".")
    same = [name for name in known if name.rpartition(".")[2] == last]
    # `base.steps` is more likely `base.training.steps` than `sft.steps`.
    first = field.partition(".")[0]
    same.sort(key=lambda name: (name.partition(".")[0] != first, name.count("."), name))
    return same[:SUGGESTED] or get_close_matches(field, known, SUGGESTED, cutoff=0.8)


def _settings_of(kind: type[BaseModel], depth: int = 3) -> Iterator[str]:
    """Dotted names of settings, down to some depth."""
    for name, info in kind.model_fields.items():
        yield name
        for inner in choices(info.annotation):
            if depth > 1 and isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from (dotted(name, below) for below in _settings_of(inner, depth - 1))


def _check_read(value: Any, content: Any, field: str) -> None:
    """Raises `ConfigError` for what was read as a number and should not be.

    That is yes or no, which are 1 and 0 for Python, and a number written as text that is too large.

    **Arguments:** `value`: what `content` was read as.
    """
    if isinstance(content, Mapping):
        for name, inner in content.items():
            read = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            _check_read(read.get(name), inner, dotted(field, str(name)))
    elif isinstance(content, list) and isinstance(value, list | tuple):
        for number, (read, inner) in enumerate(zip(value, content, strict=False)):
            _check_read(read, inner, dotted(field, str(number)))
    elif isinstance(content, bool) and isinstance(value, int | float) and value is not content:
        raise ConfigError(field, content, "give a number")
    else:
        check_numbers(value, field)


def _describe(problem: ErrorDetails, content: Any) -> tuple[str, Any, str]:
    """Field, value and remedy of a pydantic error."""
    field = _written_path(problem["loc"], content, missing=problem["type"] == "missing")
    remedy, given = problem["msg"], problem["input"]
    if problem["type"] == "extra_forbidden":
        remedy = "there is no such setting; look for a misspelling, or leave it out"
        if field.startswith("space."):
            remedy = "is no part of a range, which is written {low: 0.05, high: 0.5, log: true}"
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


_PATTERNS = {
    NAME: "use letters, digits, blanks and . _ -, the first a letter or digit",
    SOURCE_NAME: "use letters, digits and . _ -",
    r"^[a-z][a-z0-9_-]{0,31}$": "use up to 32 lower-case letters, digits, - and _, "
    "the first a letter",
    r"^[a-z][a-z0-9-]{0,31}$": "use up to 32 lower-case letters, digits and -, the first a letter",
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
        inner = settings_class(field.annotation, part) if isinstance(part, dict) else None
        if isinstance(part, dict) and inner is not None:
            try:
                inner.model_validate(part)
            except ConfigError:
                return [name, *_failing_part(inner, part)]
            except ValidationError:
                continue
    return []


def _join_paths(part: str, field: str) -> str:
    """Joins two dotted paths; where they overlap, the overlap is written once."""
    before, after = part.split(".") if part else [], field.split(".")
    shared = [n for n in range(1, len(after) + 1) if before[-n:] == after[:n]]
    return ".".join([*before, *after[max(shared, default=0) :]])
