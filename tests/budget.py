"""The size of each room of the code in tokens, and the limits of `[tool.dynolab.budget]`.

`python -m tests.budget` prints the table and fails above a limit. Comments, docstrings, blank lines
and the length of names count nothing, so that clear code is never more expensive than dense code.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "pyproject.toml"
CORE = ("dynolab", "tasks", "flows", "models")
WINGS = tuple(file.parent.name for file in sorted(ROOT.glob("*/wing.py")))
SOURCE = (*CORE, *WINGS)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


def tokens(code: str) -> int:
    """Names, operators, numbers and strings of a Python file, without docstrings."""
    docstrings = {
        node.lineno
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    return sum(
        token.type in COUNTED
        and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
    )


def rooms_of(path: Path) -> Iterator[str]:
    """The folders that hold a file, `source` for what is no test, and `core` without wings.

    Tests and benchmarks of a wing are `tests`.
    """
    inside = path.relative_to(ROOT)
    if inside.parts[0] in WINGS and inside.parts[1] in ("tests", "benchmarks"):
        yield "tests"
        return
    yield from (folder.as_posix() for folder in inside.parents)
    if inside.parts[0] in SOURCE:
        yield "source"
    if inside.parts[0] in CORE:
        yield "core"


def main() -> None:
    """Print the table, and end with an error if a room is above its limit."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    limits: dict[str, int] = settings["tool"]["dynolab"]["budget"]
    sizes = dict.fromkeys(limits, 0)
    for top in (*SOURCE, "tests"):
        for path in chain((ROOT / top).rglob("*.py"), (ROOT / top).rglob("*.pyi")):
            count = tokens(path.read_text(encoding="utf-8"))
            for room in set(rooms_of(path)) & set(limits):
                sizes[room] += count
    above = [room for room in limits if sizes[room] > limits[room]]
    for room, limit in limits.items():
        mark = f"  {sizes[room] - limit:,} above" if room in above else ""
        print(f"{room:22}{sizes[room]:8,} of {limit:7,} tokens{mark}")
    if above:
        sys.exit(
            f"{', '.join(above)}: delete what is not needed. A limit is raised in pyproject.toml, "
            "with a line in CHANGELOG.md that says why."
        )


if __name__ == "__main__":
    main()
