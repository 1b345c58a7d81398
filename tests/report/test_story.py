"""The study's page as a story: in order, with its answer first, whole or still filling."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dynolab.report.inputs.ledger import Moment
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.page import section
from dynolab.report.study.culprits import through_what
from dynolab.report.study.opening import answer
from dynolab.report.study.page import report_page_html, write_report
from dynolab.report.terms import TERMS, terms_in, with_terms
from tests.report.ledgers import write_ledger
from tests.report.parsed import Parsed, words_of
from tests.report.synthetic import study

REMEDIES = "dynolab mitigation reports/built-in-remedies.yaml"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    ledger = write_ledger(tmp_path_factory.mktemp("ledger"), tokens=(" no", " way"))
    return replace(study(remedies_command=REMEDIES), ledger=ledger)


@pytest.fixture(scope="module")
def page(inputs: ReportInputs, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("story")
    write_report(inputs, place)
    return (place / "report.html").read_text()


def ids(page: str) -> list[str]:
    return [a["id"] for _, a in Parsed(page).elements if a.get("id")]  # type: ignore[misc]


def test_the_answer_comes_first_with_both_halves_of_the_data(
    inputs: ReportInputs, page: str
) -> None:
    assert inputs.audit is not None
    sentences = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
    fell, sides, pulled, first, _, tried = (
        re.sub("(?s)<.*?>", "", sentence) for sentence in sentences
    )
    for split, name in (("train", "training"), ("heldout", "held-out")):
        changes = [row.change for row in inputs.audit.changes if row.split == split]
        assert f"{sum(c < 0 for c in changes)} of {len(changes)} {name} pairs" in fell
    assert "watched answer that fell most (1 training) changed by −2.50 nats. By side" in sides
    assert "pushes on rejected answers did −5.00, pushes on chosen answers +2.50; by pair" in sides
    assert sides.endswith("; by pair, 2 did −4.50 and 1 did +2.00.")
    assert pulled == "These pulled hardest, by 100% of the −4.50:"
    assert first.startswith("a (“what is a”) −3.50: −4.00 through its rejected answer “")
    assert first.endswith("”, most by “no” −3.5, “way” −0.50; +0.500 through its chosen one.")
    assert tried.startswith("Try first a smaller push on rejected answers, then training without")
    assert (
        "was pulled down hardest by a (−3.50: −4.00 through its rejected answer, most by “no” "
        "−3.5, “way” −0.50; +0.500 through its chosen one)."
    ) in re.sub("(?s)<.*?>", "", page), "the page goes on from its answer"
    assert page.index('class="answer"') < page.index('class="tiles"')


def test_the_side_that_pulled_more_comes_first_even_if_only_the_other_was_taken_apart(
    inputs: ReportInputs,
) -> None:
    assert inputs.ledger is not None
    moments = {"b": [Moment(0, "a", "chosen", -0.2, ((" well", -0.2),))]}
    told = through_what(replace(inputs, ledger=replace(inputs.ledger, moments=moments)))
    (words,) = (own for said in told if (own := re.sub("(?s)<.*?>", "", said)).startswith("a ("))
    assert "−4.00 through its rejected answer “" in words
    assert "”, whose tokens were not taken apart; +0.500 through its chosen one “" in words
    assert words.endswith("”, most by “well” −0.20.")


def test_an_answer_that_decides_the_mean_is_told(inputs: ReportInputs) -> None:
    changes = {"train": np.array([1.0, 1.0, 1.0, 2.0, -40.0])}
    (fell, *_) = answer(inputs, changes, {}, "")
    assert "on average, in nats, it did not clearly change in training (−7.0 [" in fell
    assert "; +1.2 without the one that changed by −40.0)" in fell


def test_a_margin_that_hardly_grew_is_told_of_both_splits(inputs: ReportInputs) -> None:
    changes = {"train": np.array([-1.0, 1.0])}
    hardly = answer(inputs, changes, {"train": 0.2, "heldout": -0.16}, "")[1]
    assert "changed by +0.20 nats in training and −0.16 nats held out." in hardly
    assert hardly.endswith("longer (preference.steps: about 250 at this pace).")
    assert all("hardly" not in said for said in answer(inputs, changes, {"train": 2.0}, ""))


def test_parts_come_in_the_order_of_a_story(page: str) -> None:
    parts = ["pushers", "token-map", "try-next", "paths", "gap", "ledger", "foresight", "contrasts"]
    parts += ["answers", "details", "events", "checks", "replay", "verdicts", "made-from", "config"]
    known = [name for name in ids(page) if name in parts]
    assert known == parts


def test_contents_name_every_part_once(page: str) -> None:
    found = set(ids(page))
    contents = page[page.index("<nav") : page.index("</nav>")]
    links = re.findall(r'href="#([^"]+)"', contents)
    assert len(links) == len(set(links))
    assert set(links) <= found
    parts = re.findall(r'<(?:section|details class="fold") id="([^"]+)"', page)
    assert set(parts) == set(links)


def test_terms_lead_to_the_glossary(page: str) -> None:
    found, linked = ids(page), terms_in(page)
    assert {f"term-{anchor}" for anchor in linked} <= set(found)
    assert len(linked) > 8
    titles = {a["href"]: a["title"] for tag, a in Parsed(page).elements if a.get("class") == "term"}
    assert titles["#term-nat"] == TERMS["nat"][1]


def test_a_text_names_a_term_once_and_stays_text() -> None:
    told = with_terms("The gap <b> of y* is a gap; its code")
    assert told.count('href="#term-gap"') == 1 and "&lt;b&gt;" in told
    assert re.sub("<a.*?>|</a>", "", told) == "The gap &lt;b&gt; of y* is a gap; its code"
    markup = section("x", "x", "").markup.__class__("<code>the gap</code> and the gap")
    assert with_terms(markup).startswith("<code>the gap</code>")


def test_what_to_try_next_is_a_command(page: str) -> None:
    commands = re.findall('<pre class="command">(.*?)</pre>', page)
    assert commands[0] == REMEDIES and commands[1].startswith("dynolab forces")


def test_files_are_named_by_where_they_are(inputs: ReportInputs, tmp_path: Path) -> None:
    places = {"reports": "my home/reports", "path_command": "dynolab path report/4f0c"}
    moved = replace(inputs, facts=inputs.facts.model_copy(update=places))
    write_report(moved, tmp_path)
    words = words_of(tmp_path / "report.html")
    assert "The study’s files are in my home/reports" in words
    assert "“dynolab path report/4f0c” prints the folder of the result" in words
    assert "beside this page" not in words
    assert "dynolab path" not in report_page_html(moved, ["report"]), "it has no result yet"


def test_a_page_fills_and_its_end_is_as_if_there_were_no_beginning(
    inputs: ReportInputs, page: str, tmp_path: Path
) -> None:
    nothing = ReportInputs(inputs.facts, watched=inputs.watched)
    sft = replace(nothing, trainings=inputs.trainings[:1])
    both = replace(sft, trainings=inputs.trainings, audit=inputs.audit)
    for so_far in (nothing, sft, both):
        early = report_page_html(so_far, ["ledger", "report"])
        assert '<meta http-equiv="refresh"' in early
        assert "Still to come: ledger, report." in early
        assert (REMEDIES in early) == (so_far is both)
    write_report(inputs, tmp_path)
    again = (tmp_path / "report.html").read_text()
    assert again == page
    assert "refresh" not in Parsed(again).words and 'http-equiv="refresh"' not in again


@pytest.mark.parametrize(
    "text",
    ["مرحبا بالعالم، كيف الحال؟", "😀👩‍👩‍👧 naïve – “quoted”", "\u202eevil\u202c <b>&amp;</b>"],
    ids=["right to left", "emoji", "marks and markup"],
)
def test_texts_of_any_script_are_shown(text: str, inputs: ReportInputs, tmp_path: Path) -> None:
    ledger = write_ledger(tmp_path, tokens=("x", "y"), rejected=text)
    answers = tuple(a.model_copy(update={"answer": text, "prompt": text}) for a in inputs.answers)
    write_report(replace(inputs, ledger=ledger, answers=answers), tmp_path / "page")
    words = words_of(tmp_path / "page" / "report.html")
    assert words.count(text) >= 3
    assert '<td dir="auto">' in (tmp_path / "page" / "report.html").read_text()


def test_answers_of_20_000_tokens_do_not_make_the_page_large(
    inputs: ReportInputs, tmp_path: Path
) -> None:
    tokens = [f" word{number}" for number in range(20_000)]
    ledger = write_ledger(tmp_path, tokens=tokens, rejected="".join(tokens))
    answers = tuple(a.model_copy(update={"answer": "".join(tokens)}) for a in inputs.answers)
    write_report(replace(inputs, ledger=ledger, answers=answers), tmp_path / "page")
    assert (tmp_path / "page" / "report.html").stat().st_size < 1e7
