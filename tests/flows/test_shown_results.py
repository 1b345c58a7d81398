"""What the terminal says when a run has ended."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from flows import mitigation
from flows.commands import show_more_seeds, show_remedies, show_results
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
    show_remedies(console, "mine", page, results)
    return output.getvalue().splitlines()


def test_the_answer_comes_last_but_for_what_can_follow(tmp_path: Path) -> None:
    (tmp_path / "mine-remedies.yaml").write_text("seeds: [0, 1]\narms: [{}, {}]\n")
    *_, page, first, answer, second, later, following = shown(tmp_path / "mine.html", ["It fell."])
    assert page.startswith("report ") and later.startswith("later ")
    assert (first, answer, second) == ("", "It fell.", "")
    assert "mitigation" in following and following.startswith("next ")


@pytest.mark.parametrize(
    ("seeds", "changes", "expected"),
    [
        ("[0, 1, 2]", ["name=first", "seeds=[0]"], "mitigation {file} --set name=first  #"),
        ("[4]", [], "mitigation {file} --set 'seeds=[4, 5, 6]'  #"),
        ("[0, 1]", [], ""),
    ],
)
def test_after_one_seed_comes_the_command_of_more(
    seeds: str, changes: list[str], expected: str, tmp_path: Path
) -> None:
    file, output = tmp_path / "mine.yaml", io.StringIO()
    file.write_text(f"name: mine\nseeds: {seeds}\n")
    show_more_seeds(Console(file=output), mitigation.FLOW, file, changes)
    assert expected.format(file=file) in output.getvalue()
    assert output.getvalue().startswith("next ") == bool(expected)
