"""Files of records are read line by line in one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dynolab.data.rows import Example, json_lines, read_rows, write_rows
from tests.budget import ROOT, SOURCE

# U+2028, U+2029 and U+0085 stand unescaped in JSON; `str.splitlines` breaks lines at all of them.
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"

NO_RECORDS = {
    "dynolab/forces/map/costs.py",  # tables of the kernel
    "tasks/runtime/launch/devices.py",  # the kernel's table of locks
    "tasks/runtime/system/processes.py",  # logs, whose progress bars end lines with \r
}


@pytest.mark.parametrize("mark", SEPARATORS, ids=lambda mark: f"U+{ord(mark):04X}")
def test_rows_with_every_separator_come_back(mark: str, tmp_path: Path) -> None:
    rows = [Example(id=f"a{mark}b", prompt=mark, chosen=f"{mark}c", rejected=f"d{mark}")] * 2
    file = tmp_path / "rows.jsonl"
    write_rows(file, rows)
    assert [*read_rows(file, Example)] == rows
    assert len([*json_lines(file)]) == 2


def test_nothing_else_splits_records_into_lines() -> None:
    files = (file for top in SOURCE for file in (ROOT / top).rglob("*.py"))
    found = {
        file.relative_to(ROOT).as_posix()
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "splitlines"
    }
    assert found == NO_RECORDS, "read records by json_lines or read_rows (dynolab.data.rows)"
