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

import yaml
from pydantic import BaseModel

from dynolab.errors import ConfigError
from flows.parameters.defaults import as_written, default_of, with_defaults, with_paths
from flows.parameters.validation import Parameters, check_numbers, dotted, validated
from tasks.runtime.launch.devices import host_devices
from tasks.runtime.system.secret_files import holds_secret

STUDIES = Path(__file__).resolve().parents[2] / "deploy" / "studies"
"""Folder of the built-in studies."""

# PyYAML does not wrap the errors of its date and number constructors.
_ERRORS = (yaml.YAMLError, ValueError, AttributeError, RecursionError)

MOST_BYTES = 2**20
"""Of a study file: YAML takes half a minute for ten times as much."""

MOST_NODES = 100_000
"""Values of a study file, those counted that aliases repeat."""

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
        remedy = f"cannot be read as YAML ({error}); fix it there"
        raise ConfigError("config", str(file), remedy) from error


def read_settings(text: str, origin: str) -> dict[str, Any]:
    """A study's settings by name, from YAML, which can hold only data."""
    content = read_yaml(text, "config", origin, "fix it there") or {}
    if not isinstance(content, dict):
        raise ConfigError("config", origin, "must hold settings by name (key: value)")
    return content


def read_yaml(text: str, field: str, shown: str, remedy: str) -> Any:
    """Plain data from YAML. **Raises** `ConfigError` with this field, its value and the remedy."""
    try:
        return yaml.load(text, _Loader)
    except _ERRORS as error:
        raise ConfigError(
            field, shown, f"cannot be read as YAML ({_problem(error)}); {remedy}"
        ) from error


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which refuses settings given twice, and aliases that never end."""

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _count_nodes(node, {})
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in names:
                    problem = f"{key.value} is given twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                names.add(key.value)
        return super().construct_mapping(node, deep)


def _count_nodes(node: yaml.Node, counts: dict[yaml.Node, int | None]) -> int:
    """How many values a node holds when every alias is written out, in `counts`, too."""
    if node in counts:
        count = counts[node]
        if count is None:
            problem = "an alias stands for what holds it"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return count
    counts[node] = None
    count = 1
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        for part in item if isinstance(item, tuple) else (item,):
            count += _count_nodes(part, counts)
    if count > MOST_NODES:
        problem = f"aliases make more than {MOST_NODES:,} values of it"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    counts[node] = count
    return count


def _problem(error: Exception) -> str:
    """The problem and its place in the text, on one line."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem
