"""The study's page as a story: in order, with its answer first, whole or still filling."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.fallen import half_of_a_fall, summed_pushers
from dynolab.report.page import ANSWER, section
from dynolab.report.study.findings import find
from dynolab.report.study.page import report_page_html, write_report
from dynolab.report.style import with_interval
from dynolab.report.terms import TERMS, terms_in, with_terms
from dynolab.results.ledger_reader import Pulls
from dynolab.statistics import mean_interval
from tests.report.ledgers import write_ledger
from tests.report.parsed import Parsed, words_of
from tests.report.synthetic import study

REMEDIES = "dynolab mitigation reports/built-in-remedies.yaml"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ReportInputs:
    ledger = write_ledger(tmp_path_factory.mktemp("ledger"), tokens=(" no", " way"))
    return replace(study(remedies_command=REMEDIES), ledger=ledger)


@pytest.fixture(scope="module")
def place(inputs: ReportInputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("story")
    write_report(inputs, place)
    return place


@pytest.fixture(scope="module")
def page(place: Path) -> str:
    return (place / "report.html").read_text()


def ids(page: str) -> list[str]:
    return [a["id"] for _, a in Parsed(page).elements if a.get("id")]  # type: ignore[misc]


def test_the_answer_counts_both_halves_of_the_data(inputs: ReportInputs, page: str) -> None:
    assert inputs.audit is not None
    answer, half = re.findall(r'<p class="answer">(.*?)</p>', page, re.DOTALL)
    plain = re.sub("(?s)<.*?>", "", answer)
    for split, name in (("train", "training"), ("heldout", "held-out")):
        changes = [row.change for row in inputs.audit.changes if row.split == split]
        lower = [change for change in changes if change < 0]
        assert f"{len(lower)} of {len(changes)} {name} pairs" in plain
        if lower:
            means = [with_interval(mean_interval(values)) for values in (lower, changes)]
            assert f"mean of these {means[0]} nats, of all {means[1]}" in plain
    assert inputs.ledger is not None
    sentence = half_of_a_fall(Pulls.down(summed_pushers(inputs.ledger)))
    assert sentence in half and page.count(sentence) == 1


def test_answers_that_rise_are_nothing_wrong(inputs: ReportInputs, tmp_path: Path) -> None:
    """And nobody is blamed for the few that fell."""
    assert inputs.audit is not None
    rose = [row.model_copy(update={"change": abs(row.change)}) for row in inputs.audit.changes]
    risen = replace(inputs, audit=replace(inputs.audit, changes=tuple(rose)))
    assert find(risen).harmless and not find(inputs).harmless
    write_report(risen, tmp_path)
    assert "pull down" not in (tmp_path / ANSWER).read_text()


def test_a_terminal_gets_the_first_tables_in_25_lines(place: Path) -> None:
    lines = (place / ANSWER).read_text().splitlines()
    _, _, _, head, fallen, _, _, puller, *_ = lines
    assert len(lines) <= 25 and max(map(len, lines[2:])) <= 100
    assert fallen.split()[:5] == ["b", "−2.50", "+2.00", "+0.00", "−4.50"]
    assert puller.split()[:6] == ["a", "78", "%", "−3.50", "+0.500", "−4.00"]
    assert head.index("other pairs") + len("other pairs") == fallen.index("−4.50") + len("−4.50")


def test_parts_come_in_the_order_of_a_story(page: str) -> None:
    parts = ["fallen", "pairs", "changes", "paths", "gap", "try-next", "pushers", "token-map"]
    parts += ["ledger", "foresight", "contrasts", "answers", "details", "events", "checks"]
    parts += ["validity", "replay", "verdicts", "made-from", "config"]
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


def test_texts_of_any_script_are_shown(inputs: ReportInputs, tmp_path: Path) -> None:
    text = "مرحبا بالعالم، كيف الحال؟ 😀👩‍👩‍👧 naïve – “quoted” \u202eevil\u202c <b>&amp;</b>"
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
    assert (tmp_path / "page" / "report.html").stat().st_size < 8e6
