"""Some situations of trainings; the benchmark judges all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.situations import SITUATIONS


@pytest.mark.parametrize(
    "name",
    [
        "sft: the assistant's turns alone, tools",
        "cpo",
        "reward",
        "tool calls: dates",
    ],
)
def test_a_situation(name: str, tmp_path: Path) -> None:
    verdict = SITUATIONS[name](tmp_path / "run")
    assert (verdict.what, verdict.weights_differ) == ("ok", False), verdict.detail
