"""Every command that a study's pages print is taken as it stands, and trains what it says."""

from __future__ import annotations

from pathlib import Path

from tests.flows.printed import Printed


def test_printed_commands_are_of_the_runs_that_they_are_printed_for(tmp_path: Path) -> None:
    printed = Printed(tmp_path)
    checks = dict(printed.checks())
    assert len(printed.on_page) == 4 and len(checks) > 8
    assert [command for command, right in checks.items() if not right] == []
