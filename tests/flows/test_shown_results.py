"""What the terminal says when a run has ended."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dynolab.report.forces.page import write_force_page
from dynolab.report.forces.pair_matrix import pair_matrix_figure
from flows import mitigation, study
from flows.commands import page_answer, show_more_seeds, show_remedies, show_results
from flows.flow import Results
from tasks.runtime.work import StageResult
from tests.report.forces import analysis


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


def test_unknown_tokens_are_told_of_a_new_model_on_rows_that_were_read_before() -> None:
    def result(stage: str, metrics: dict[str, float], *, cached: bool) -> dict[str, Any]:
        return StageResult(
            stage=stage,
            key="0" * 64,
            address=f"{stage}/0",
            digest="",
            metrics=metrics,
            mlflow_run_id=None,
            cached=cached,
        ).model_dump()

    counts = {"tokens": 3, "total": 90, "answers": 2, "texts": 9}
    results: Results = {
        "rows": result("data", {"data/train_pairs": 9, "data/heldout_pairs": 1}, cached=True),
        "sft": result("sft", {f"data/unknown_{n}": k for n, k in counts.items()}, cached=False),
    }
    output = io.StringIO()
    show_results(Console(file=output, width=200), "study", results, Path("x.html"), 3.0, [])
    assert "3 of 90 tokens (3.3%) in 2 of 9 answers are unknown" in output.getvalue()
    assert "10 rows" not in output.getvalue(), "the run that read them told of them"


def test_a_run_without_an_answer_ends_with_its_page(tmp_path: Path) -> None:
    assert shown(tmp_path / "mine.html", [])[-1].startswith("later ")


def test_a_page_without_an_answer_gives_its_first_finding(tmp_path: Path) -> None:

    assert page_answer(tmp_path) == []
    write_force_page(analysis(), tmp_path)
    assert page_answer(tmp_path) == [pair_matrix_figure(analysis().checkpoints).message]


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


def test_what_has_no_seeds_has_no_such_command() -> None:
    output = io.StringIO()
    show_more_seeds(Console(file=output), study.FLOW, Path("builtin.yaml"), [])
    assert not output.getvalue()
