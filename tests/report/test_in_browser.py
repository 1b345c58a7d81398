"""The study's page in a browser: on a phone, in the dark, moved, printed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.forces.page import write_force_page
from dynolab.report.study.page import write_report
from tests.browsing import CHROMIUM, READERS, faint, opened
from tests.report.forces import analysis
from tests.report.ledgers import write_ledger
from tests.report.pairs import mitigation
from tests.report.synthetic import study

pytest.importorskip("playwright.sync_api")
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page alone, in a folder that it was moved to; its result is gone."""
    made, moved = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("moved here, too")
    ledger = write_ledger(tmp_path_factory.mktemp("ledger"), ("😀", " مرحبا"), "😀 مرحبا")
    write_report(replace(study(remedies_command="dynolab mitigation x"), ledger=ledger), made)
    shutil.move(made / "report.html", moved / "report.html")
    shutil.rmtree(made)
    return moved / "report.html"


@pytest.mark.parametrize(("width", "dark"), READERS)
def test_a_reader_finds_the_way_and_can_read_all(page: Path, width: int, dark: bool) -> None:
    with opened(page, width, dark=dark) as seen:
        window = seen.page
        assert window.evaluate("document.documentElement.scrollWidth") <= width
        contents = window.locator(".contents details")
        assert contents.evaluate("menu => menu.open") == (width > 1159)
        answer = window.locator(".answer").first.bounding_box()
        assert answer["y"] + answer["height"] < 850, "the answer is on the first screen"
        if width < 1160:
            window.locator(".contents summary").click()
        window.locator(".contents a[href='#verdicts']").click()
        seen.until("document.getElementById('checks').open")
        window.locator("#verdicts").wait_for()
        assert window.locator(".contents").bounding_box()["y"] == 0, "contents stay"
        window.evaluate("location.hash = 'training'")
        seen.until("drawn.has(document.getElementById('plot-training'))")
        window.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert faint(window) == []
        assert seen.errors == []


@pytest.mark.parametrize("idle", [True, False])
def test_figures_outside_closed_folds_are_drawn_without_scrolling(page: Path, idle: bool) -> None:
    before = "" if idle else "delete window.requestIdleCallback;"
    with opened(page, 1280, before=before) as seen:
        open_ones = "plots.filter((plot) => !plot.closest('.fold'))"
        assert seen.page.evaluate(f"{open_ones}.length > 2 && {open_ones}.length < plots.length")
        seen.until(f"{open_ones}.every((plot) => drawn.has(plot))")
        seen.page.wait_for_timeout(300)
        assert seen.page.evaluate(f"drawn.size === {open_ones}.length"), "closed folds wait"
        assert seen.page.evaluate("scrollY") == 0 and seen.errors == []


def test_a_command_is_copied_by_a_click_and_a_printed_page_has_all_its_figures(page: Path) -> None:
    with opened(page, 1280) as seen:
        seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        seen.page.locator(".command .copy").first.click()
        seen.page.get_by_text("copied").wait_for()
        assert seen.page.evaluate("navigator.clipboard.readText()") == "dynolab mitigation x"
        seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert seen.page.evaluate("drawn.size === plots.length && plots.length > 5")
        assert seen.page.evaluate("[...document.querySelectorAll('.fold')].every(f => f.open)")
        assert len(seen.page.pdf(prefer_css_page_size=True)) > 10_000
        assert seen.errors == []


def test_a_click_on_a_pair_shows_its_map(tmp_path: Path) -> None:
    write_force_page(analysis(), tmp_path)
    with opened(tmp_path / "forces.html", 1280) as seen:
        seen.until("drawn.has(document.getElementById('plot-pairs'))")
        x, y = seen.page.evaluate("""() => {
            const plot = document.getElementById("plot-pairs"), dots = plot.data[3];
            const {left, top} = plot.getBoundingClientRect(), layout = plot._fullLayout;
            const place = (axis, value) => axis._offset + axis.d2p(value);
            return [left + place(layout.xaxis2, dots.x[1]), top + place(layout.yaxis2, dots.y[1])];
        }""")
        seen.page.mouse.click(x, y)
        shown = "document.getElementById('plot-token-maps').data.map((trace) => trace.visible)"
        seen.until(f"drawn.has(document.getElementById('plot-token-maps')) && {shown}.at(-1)")
        assert not seen.page.evaluate(f"{shown}[0]")
        assert seen.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_every_figure_of_every_run_is_seen_without_scrolling_aside(
    width: int, tmp_path: Path
) -> None:
    write_mitigation_page(mitigation(), tmp_path)
    with opened(tmp_path / "mitigation.html", width) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        tables = seen.page.locator("#runs .table, #more .table")
        assert tables.count() == 3 and seen.errors == []
        cut = "tables => tables.filter(table => table.scrollWidth > table.clientWidth).length"
        assert tables.evaluate_all(cut) == 0
