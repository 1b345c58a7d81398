"""Circles of imports, and tensors without a shape: there are none, or `make lint` fails.

`python -m tests.structure` prints how many there are, and where. A circle is a set of modules of
which each imports the others, over others too; imports within functions and for types count. A
tensor is bare where an annotation, or an alias of a type, names `Tensor` without a shape of
jaxtyping's.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator

import grimp

from tests.budget import ROOT, SETTINGS

SHAPED = ("forces", "integrations", "likelihood", "objectives")
"""Packages of the library that have no bare tensors."""


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """The modules of each circle."""
    found = set()
    for module in graph.modules:
        imported = graph.find_upstream_modules(module)
        importing = graph.find_downstream_modules(module)
        if around := imported & importing:
            found.add(frozenset(around | {module}))
    return found


def bare_tensors(code: str) -> list[int]:
    """The lines of a file's bare tensors."""
    tree = ast.parse(code)
    types: list[ast.AST] = [
        statement.value for statement in tree.body if isinstance(statement, ast.Assign)
    ]
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            if annotation is not None:
                types.append(annotation)
    return [line for node in types for line in _bare(node)]


def _bare(node: ast.AST) -> Iterator[int]:
    if _is_tensor(node):
        yield node.lineno
        return
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        array, *shape = node.slice.elts
        if _is_tensor(array) and isinstance(shape[0], ast.Constant):
            return
    if isinstance(node, ast.Attribute):  # a method of the class
        return
    for part in ast.iter_child_nodes(node):
        yield from _bare(part)


def _is_tensor(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "Tensor"
    return isinstance(node, ast.Name) and node.id == "Tensor"


def main() -> None:
    """Print both counts with their places; end with an error unless they are 0."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    packages = settings["tool"]["importlinter"]["root_packages"]
    places = {
        "circles": [" ".join(sorted(circle)) for circle in circles(grimp.build_graph(*packages))],
        "bare_tensors": [
            f"{path.relative_to(ROOT)}:{line}"
            for package in SHAPED
            for path in sorted((ROOT / "dynolab" / package).rglob("*.py"))
            for line in bare_tensors(path.read_text(encoding="utf-8"))
        ],
    }
    for name, where in places.items():
        print(f"{name:22}{len(where):8}", *where, sep="\n    ")
    if any(places.values()):
        sys.exit("Move what both modules need into a third, and give each tensor its shape.")


if __name__ == "__main__":
    main()
