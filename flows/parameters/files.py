"""Reads study files: their text, and the settings in it as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dynolab.errors import ConfigError
from tasks.runtime.launch.devices import host_devices

STUDIES = Path(__file__).resolve().parents[2] / "deploy" / "studies"
"""Folder of the built-in studies."""

# PyYAML does not wrap the errors of its date and number constructors.
_ERRORS = (yaml.YAMLError, ValueError, AttributeError, RecursionError)

MOST_BYTES = 2**20
"""Of a study file: YAML takes half a minute for ten times as much."""

MOST_NODES = 100_000
"""Values of a study file, those counted that aliases repeat."""


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
