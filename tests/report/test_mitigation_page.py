"""The page of remedies holds the numbers of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.comparisons.matched import table_of
from dynolab.data.rows import read_value
from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.page import ANSWER
from dynolab.report.style import with_interval
from dynolab.results.arms import ComparedArms
from tests.report.pairs import ARMS, mitigation
from tests.report.parsed import check_figures, words_of


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_the_page_and_the_terminal_have_a_row_for_every_run(
    seeds: tuple[int, ...], tmp_path: Path
) -> None:
    compared = mitigation(seeds=seeds)
    write_mitigation_page(compared, tmp_path, commands={"designed": "dynolab study FILE"})
    check_figures(tmp_path, "mitigation.html")
    answer = (tmp_path / ANSWER).read_text()
    assert len(answer.splitlines()) <= 25
    change = table_of(compared).difference("dose", "dpo", "heldout/chosen")
    (row,) = (line for line in answer.splitlines() if line.startswith("dose "))
    assert f"({with_interval(change)})" in row
    words = words_of(tmp_path / "mitigation.html", " ")
    assert "nan" not in words
    assert ("✓ best" in words) == (len(seeds) > 1)
    assert answer.rstrip().endswith("dynolab study FILE" if len(seeds) > 1 else "'seeds=[4, 5, 6]'")


def test_followed_answers_are_on_the_page_with_the_changes_of_other_seeds(tmp_path: Path) -> None:
    compared = mitigation()
    write_mitigation_page(compared, tmp_path)
    words = words_of(tmp_path / "mitigation.html", " ")
    section = words.split("Single answers")[-1]
    assert all(own.pair_id in section for own in compared.followed)
    write_mitigation_page(compared.model_copy(update={"followed": ()}), tmp_path)
    assert 'id="followed"' not in (tmp_path / "mitigation.html").read_text()


def test_the_summary_says_what_diverged_and_judges_the_others(tmp_path: Path) -> None:
    compared = mitigation(lost="simpo")
    metrics = write_mitigation_page(compared, tmp_path)
    assert (metrics["simpo/diverged"], metrics["dpo/diverged"]) == (1.0, 0.0)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ends"]["simpo"] == "seed 0 diverged after 31 steps"
    assert summary["ends"]["alarm"] == "3 of 3 ended by the alarm at step 40"
    assert summary["means"]["simpo/train/gap"]["n"] == 2
    assert summary["differences"]["simpo/train/gap"]["n"] == 2
    assert summary["matched"]["dose/gap"]["high"] < 0 < summary["matched"]["simpo/gap"]["low"]
    outcomes = {verdict["id"]: verdict["outcome"] for verdict in summary["verdicts"]}
    assert len(outcomes) == 6 * (len(ARMS) - 1)
    assert outcomes["dose/right"] == "appears" and outcomes["dose/right_heldout"] == "does not"
    assert read_value(tmp_path / "comparison.json", ComparedArms) == compared
    metrics = write_mitigation_page(mitigation(seeds=(0,), lost="simpo"), tmp_path)
    assert "simpo/train/gap" not in metrics
