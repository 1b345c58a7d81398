"""The size and order of the house: `python -m tests.benchmarks.house`. Keys:

- `source_statements`, `test_statements`: statements of the syntax trees outside and inside tests;
- `fmt_skips`: places where the formatter is told to leave a line as it is;
- `back_arrows`: imports against the direction of the contracts in `pyproject.toml`, each of which
  is named there; `contracts_kept`: whether there are no others;
- `circles`: groups of files that import each other, imports for types included;
- `flow_files`: modules under `flows/`;
- `files_to_add_<kind>`: files that a new objective, reward, stage, flow, probe kind or page
  touches, as CONTRIBUTING.md lists them;
- `wheel_top_level`: what the wheel puts at the top level (a list);
- `bars`: [bound, met].
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tests.benchmarks.figures import report

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("dynolab", "models", "tasks", "flows", "docker")
AT_MOST = {
    "source_statements": 21_500,
    "test_statements": 17_500,
    "fmt_skips": 0,
    "back_arrows": 3,
    "circles": 0,
    "flow_files": 32,
}
_SKIP = "fmt: " + "skip"
_ADDS = re.compile(r"^- \*\*(?P<kind>[\w ]+)\*\*: (?P<text>.*?)(?=^- |\Z|^#)", re.M | re.S)


def files(*folders: str) -> Iterator[Path]:
    """The Python files under some folders."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def statements(paths: Iterable[Path]) -> int:
    """Statements of the files' syntax trees, nested ones included."""
    return sum(
        isinstance(node, ast.stmt)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
    )


def module(path: Path) -> str:
    """The dotted name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def circles(paths: Iterable[Path]) -> int:
    """Groups of two or more modules that import each other, inside functions and for types too."""
    trees = {module(path): ast.parse(path.read_text()) for path in paths}
    number = {name: place for place, name in enumerate(trees)}
    arrows = [
        (number[name], number[imported])
        for name, tree in trees.items()
        for imported in imports(tree, trees)
    ]
    rows, columns = zip(*arrows, strict=True)
    graph = coo_array(([1] * len(arrows), (rows, columns)), shape=(len(trees), len(trees)))
    _, labels = connected_components(graph, directed=True, connection="strong")
    return sum(list(labels).count(label) > 1 for label in set(labels))


def imports(tree: ast.Module, modules: Collection[str]) -> Iterator[str]:
    """Those of some modules that a file imports, or something of which."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def back_arrows() -> int:
    """Imports that the contracts on layers pass over."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    return sum(
        len(contract.get("ignore_imports", ()))
        for contract in contracts
        if contract["type"] == "layers"
    )


def files_to_add() -> dict[str, int]:
    """Files that CONTRIBUTING.md names for each kind of extension."""
    file = ROOT / "CONTRIBUTING.md"
    if not file.exists():
        return {}
    return {
        f"files_to_add_{match['kind'].strip().replace(' ', '_')}": len(
            set(re.findall(r"`([\w/.]+\.(?:py|yaml|json|html))`", match["text"]))
        )
        for match in _ADDS.finditer(file.read_text())
    }


def wheel_top_level() -> list[str]:
    """What stands at the top level of the wheel, apart from its own metadata."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"  # a build leaves files in its folder, which the next one packs
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "mutants", "build"))
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        command += ["--no-build-isolation", "--wheel-dir", folder, str(copy)]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    return sorted(top for top in tops if not top.endswith(".dist-info"))


def main() -> None:
    sources, tests = list(files(*SOURCES)), list(files("tests"))
    lint = [str(Path(sys.executable).with_name("lint-imports")), "--config", "pyproject.toml"]
    wheel = wheel_top_level()
    figures: dict[str, Any] = {
        "source_statements": statements(sources),
        "test_statements": statements(tests),
        "fmt_skips": sum(path.read_text().count(_SKIP) for path in [*sources, *tests]),
        "back_arrows": back_arrows(),
        "contracts_kept": subprocess.run(lint, cwd=ROOT, capture_output=True).returncode == 0,
        "circles": circles(sources),
        "flow_files": sum(path.name != "__init__.py" for path in files("flows")),
        **files_to_add(),
        "wheel_top_level": wheel,
        "wheel_is_the_library_alone": wheel == ["dynolab"],
    }
    figures_met = {"contracts_kept": 1, "wheel_is_the_library_alone": 1}
    report(figures, at_most=AT_MOST, at_least=figures_met)


if __name__ == "__main__":
    main()
