"""Parses study files, with changes, into the parameters of flows.

A file is merged into the defaults, and its relative paths start from its own folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
)

from dynolab.errors import ConfigError
from flows.parameters.defaults import as_written, default_of, with_defaults, with_paths
from flows.parameters.files import read_settings, read_study, read_yaml, study_file
from flows.parameters.validation import Parameters, check_numbers, dotted, validated
from tasks.runtime.system.secret_files import holds_secret

_VARIABLE = re.compile(r"\$\{(\w+)\}")


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
    check_numbers(content, "")
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


def as_change(setting: str, value: Any) -> str:
    """The change `setting=value` with the value as JSON."""
    return f"{setting}={json.dumps(value, ensure_ascii=False)}"  # YAML has no surrogate pairs


def _apply(kind: type[BaseModel], content: dict[str, Any], change: str) -> None:
    setting, equals, text = change.partition("=")
    *parents, leaf = names = setting.split(".")
    if not equals or not all(names):
        raise ConfigError("--set", change, "write it as key=value, such as sft.steps=20")
    inner: Any = content
    default: Any = kind
    for name in parents:
        default = default_of(default, name)
        if inner.get(name) is None:  # also a key without a value
            inner[name] = as_written(default) if isinstance(default, Mapping) else {}
        inner = inner[name]
        if not isinstance(inner, dict):
            raise ConfigError(
                "--set", change, f"{name} holds a value, not settings; give a setting of its own"
            )
    inner[leaf] = read_yaml(text, "--set", change, "quote the value")


def _with_variables(value: Any, field: str) -> Any:
    if isinstance(value, dict):
        return {
            name: _with_variables(inner, dotted(field, str(name))) for name, inner in value.items()
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
