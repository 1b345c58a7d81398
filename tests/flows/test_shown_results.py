"""What the terminal says when a run has ended."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from flows.commands import show_results
from flows.flow import Results
from tasks.runtime.work import StageResult


def shown(page: Path, answer: list[str]) -> list[str]:
    result = StageResult(
        stage="sft",
        key="0" * 64,
        address="sft/0",
        digest="",
        metrics={"seconds": 3.0},
        mlflow_run_id=None,
        cached=False,
    )
    results: Results = {"sft": result.model_dump()}
    output = io.StringIO()
    console = Console(file=output, width=200)
    show_results(console, "study", results, page, 3.0, answer)
    return output.getvalue().splitlines()


def test_the_answer_comes_last_but_for_what_can_follow(tmp_path: Path) -> None:
    *_, page, first, answer, second, later = shown(tmp_path / "mine.html", ["It fell."])
    assert page.startswith("report ") and later.startswith("later ")
    assert (first, answer, second) == ("", "It fell.", "")
