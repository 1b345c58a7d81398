"""Statements in each room of the code, and the limits of `[tool.dynolab.budget]` in pyproject.toml.

`python -m tests.budget` prints the table and fails above a limit. With rooms as arguments it lowers
their limits to what they hold.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "pyproject.toml"
SOURCE = ("dynolab", "tasks", "flows", "models")


def statements(code: str) -> int:
    """Statements of a Python file at every depth; docstrings do not count."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        for node in ast.walk(ast.parse(code))
    )


def main(lowered: list[str]) -> None:
    """Print the table, and end with an error if a room is above its limit."""
    text = SETTINGS.read_text(encoding="utf-8")
    limits: dict[str, int] = tomllib.loads(text)["tool"]["dynolab"]["budget"]
    held = dict.fromkeys(limits, 0)
    for top in (*SOURCE, "tests"):
        for path in (ROOT / top).rglob("*.py"):
            count = statements(path.read_text(encoding="utf-8"))
            rooms = {folder.as_posix() for folder in path.relative_to(ROOT).parents}
            for room in (rooms | {"source"} if top in SOURCE else rooms) & set(limits):
                held[room] += count
    for room in lowered:
        limits[room] = min(limits[room], held[room])
        text = re.sub(rf'(?m)^("?{re.escape(room)}"?) = \d+$', rf"\1 = {limits[room]}", text)
        SETTINGS.write_text(text, encoding="utf-8")
    above = [room for room in limits if held[room] > limits[room]]
    for room, limit in limits.items():
        mark = f"  {held[room] - limit:,} above" if room in above else ""
        print(f"{room:22}{held[room]:8,} of {limit:6,}{mark}")
    if above:
        sys.exit(
            f"{', '.join(above)}: reduce them. A limit is raised in pyproject.toml, with a line in "
            "CHANGELOG.md that says what paid for it."
        )


if __name__ == "__main__":
    main(sys.argv[1:])
