"""The page of judged policies holds their rates, and obeys no text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynolab.report.comparison.judges import SHOWN, write_judge_page
from dynolab.report.style import points
from tests.report.judged import comparison
from tests.report.parsed import CANARY, check_figures, obeys_no_text, words_of


def test_rates_are_in_the_table_and_contradicted_prompts_come_first(tmp_path: Path) -> None:
    inputs = comparison()
    metrics = write_judge_page(inputs, tmp_path)
    rate = inputs.rates[0]
    assert metrics["win_rate/dpo/exact"] == rate.rate
    assert points(rate.interval, sign=False) in words_of(tmp_path / "judge.html")
    assert check_figures(tmp_path, "judge.html") >= 1
    answers = (tmp_path / "judge.html").read_text().split('id="prompts"')[1].split("</table>")[0]
    rows = answers.split("<tr>")[2:]
    assert len(rows) == SHOWN
    split = ["won" in row and "lost" in row for row in rows]
    assert split[0] and split == sorted(split, reverse=True)


@pytest.mark.parametrize("prompts", [1, 3])
def test_a_judge_without_verdicts_leaves_gaps_and_no_errors(prompts: int, tmp_path: Path) -> None:
    metrics = write_judge_page(
        comparison(prompts=prompts, silent=True, text=CANARY, name=CANARY), tmp_path
    )
    words = " ".join(obeys_no_text(tmp_path, "judge.html").words)
    assert "window.canary=1" in words and not re.search(r"\bnan\b", words)
    assert "win_rate/dpo/gpt" not in metrics and metrics["verdicts/unparsable"] == 4 * prompts
