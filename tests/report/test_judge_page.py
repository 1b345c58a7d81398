from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynolab.report.judges.page import rate_figure, write_judge_page
from dynolab.report.judges.tables import SHOWN, prompt_section
from tests.report.judged import comparison
from tests.report.parsed import CANARY, check_figure, check_figures, obeys_no_text, words_of


def test_the_page_says_who_is_preferred_and_how_surely(tmp_path: Path) -> None:
    inputs = comparison()
    metrics = write_judge_page(inputs, tmp_path)
    words, rate = words_of(tmp_path / "judge.html"), inputs.rates[0].rate
    assert metrics["win_rate/dpo/exact"] == rate
    for said in (
        "Whose answers to 40 held-out prompts are better: dpo and resampled against sft",
        f"dpo wins {100 * rate:.1f} [",
        "320 verdicts were requested, 320 were received",
        "No judge shows a position bias",
    ):
        assert said in words
    check_figures(tmp_path, "judge.html")


def test_prompts_on_which_judges_contradict_each_other_come_first() -> None:
    markup = prompt_section(comparison()).markup
    rows = markup.split("<tr>")[2:]
    assert len(rows) == SHOWN
    split = ["won" in row and "lost" in row for row in rows]
    assert split[0] and split == sorted(split, reverse=True)


@pytest.mark.parametrize("prompts", [1, 3])
def test_a_judge_without_verdicts_leaves_gaps_and_no_errors(prompts: int, tmp_path: Path) -> None:
    metrics = write_judge_page(comparison(prompts=prompts, silent=True), tmp_path)
    words = words_of(tmp_path / "judge.html", " ")
    assert not re.search(r"\bnan\b", words)
    assert f"{8 * prompts} verdicts were requested, {4 * prompts} were received" in words
    assert "No prompt was judged by two judges" in words
    assert "win_rate/dpo/gpt" not in metrics and metrics["verdicts/unparsable"] == 4 * prompts


def test_text_of_policies_and_judges_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    write_judge_page(comparison(text=CANARY, silent=True, name=CANARY), tmp_path)
    page = obeys_no_text(tmp_path, "judge.html")
    assert sum("window.canary=1" in words for words in page.words) > 10
    assert len([text for a, text in page.scripts if "type" not in a]) == 2


def test_the_figure_says_how_it_is_read() -> None:
    check_figure(rate_figure(comparison()))
