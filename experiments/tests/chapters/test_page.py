"""The page of a chapter: its verdicts and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.claims.verdict import Measurement, Verdict, above, never
from dynolab.data.rows import read_rows
from dynolab.report.figure import Figure, empty_plot
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import section
from dynolab.report.style import plotly_text
from dynolab.statistics import Interval
from experiments.chapters.page import Chapter, write_chapter
from tests.report.parsed import words_of
from tests.report.test_hostile_text import CANARY, obeys_no_text

ABOVE, BELOW = Interval(2.0, 1.0, 3.0, 5), Interval(-2.0, -3.0, -1.0, 5)
ACROSS = Interval(0.5, -1.0, 2.0, 5)


def verdict(name: str, *measured: Measurement, mark: str = "") -> Verdict:
    return Verdict.of(name, f"topic{mark}", f"{name} is so{mark}", f"Δ > 0{mark}", *measured)


def verdicts(mark: str = "") -> list[Verdict]:
    return [
        verdict("risen", above(f"Δ{mark}", ABOVE), mark=mark),
        verdict("fallen", above("Δ", ABOVE), above("Δ of others", BELOW)),
        verdict("open", above("Δ", ACROSS)),
        verdict("absent"),
        verdict("always", never("cases in which p_y rises", 0, 20_000)),
        verdict("mostly", never("cases in which p_i falls", 3, 20_000)),
        verdict("untried", never("cases", 0, 0)),
    ]


def chapter(mark: str = "") -> Chapter:
    figure = empty_plot(300)
    figure.add_scatter(x=[1, 2], y=[3, 4], name=plotly_text(f"curve{mark}"))
    return Chapter(
        title=f"A chapter{mark}",
        lead=f"What was done.{mark}",
        verdicts=verdicts(mark),
        content=[
            Figure("curve", f"A curve{mark}", f"It rises.{mark}", "How to read it.", figure),
            section("more", f"More{mark}", f"Said.{mark}"),
        ],
        source=f"Claims of a paper.{mark}",
    )


def test_every_claim_stands_with_its_numbers_and_its_verdict(tmp_path: Path) -> None:
    metrics = write_chapter(chapter(), tmp_path, "chapter.html")
    assert metrics == {
        "claims/holds": 2.0,
        "claims/fails": 2.0,
        "claims/unclear": 1.0,
        "claims/not_measured": 2.0,
    }
    page = " ".join(words_of(tmp_path / "chapter.html", " ").split())
    for said in (
        "Of 7 claims, 2 hold, 2 fail, 1 unclear, 2 not measured.",
        "+2.0 [+1.0, +3.0] nats",
        "0 of 20,000 [≤ 0.019%]",
        "3 of 20,000 [≤ 0.044%]",
    ):
        assert said in page


def test_the_claims_are_kept_as_rows(tmp_path: Path) -> None:
    write_chapter(chapter(), tmp_path, "chapter.html")
    rows = {row.id: row for row in read_rows(tmp_path / "claims.jsonl", Verdict)}
    assert [row.outcome for row in rows.values()] == [
        "holds",
        "fails",
        "unclear",
        "not measured",
        "holds",
        "fails",
        "not measured",
    ]
    (risen,), (counted,) = rows["risen"].measured, rows["mostly"].measured
    assert (risen.interval, risen.unit) == (ABOVE, "nats")
    assert (counted.violations, counted.n) == (3, 20_000)
    assert counted.mean == pytest.approx(3 / 20_000)


def test_every_figure_is_a_file_of_its_own(tmp_path: Path) -> None:
    write_chapter(chapter(), tmp_path, "chapter.html")
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {
        "curve.html",
        "curve.json",
        "plotly.min.js",
    }
    assert json.loads((tmp_path / "figures" / "curve.json").read_text())["data"]


def test_a_chapter_without_claims_says_so(tmp_path: Path) -> None:
    empty = Chapter(title="Empty", lead="Nothing.", verdicts=(), content=())
    assert write_chapter(empty, tmp_path, "chapter.html") == {}
    assert "This chapter makes no claims." in (tmp_path / "chapter.html").read_text()


def test_text_of_others_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    write_chapter(
        chapter(CANARY),
        tmp_path,
        "chapter.html",
        name=CANARY,
        settings=CANARY,
        stages=[StageFacts(stage=CANARY, key="ab" * 32, seconds=1.0)],
    )
    assert CANARY in " ".join(obeys_no_text(tmp_path, "chapter.html").words)
