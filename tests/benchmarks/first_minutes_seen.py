"""A study in a browser: how soon its page and the explorer's maps are drawn, and what complains."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from flows.explore import KEPT
from tests.browsing import browser_page, opened
from tests.explorer.serving import explorer

WIDTHS, REPEATS = (1280, 390), 5
PATIENCE_MS = 90_000


def seen(home: Path, page: Path) -> dict[str, float]:
    """The page of a home's newest study, and its explorer."""
    of_page, page_errors = page_in_browser(page)
    of_explorer, explorer_errors = explorer_in_browser(home)
    return of_page | of_explorer | {"console_errors": page_errors + explorer_errors}


def page_in_browser(page: Path) -> tuple[dict[str, float], int]:
    """The whole page, opened from where no other file is; and the console's errors."""
    moved = page.with_name("moved") / page.name
    moved.parent.mkdir(exist_ok=True)
    shutil.copyfile(page, moved)
    loads, errors = [], 0
    for width in WIDTHS:
        for _ in range(REPEATS):
            with opened(moved, width) as open_page:
                loads.append(open_page.load_seconds)
                errors += len(open_page.errors)
    return {"report_bytes": page.stat().st_size, "report_load_s": statistics.median(loads)}, errors


def explorer_in_browser(home: Path) -> tuple[dict[str, float], int]:
    """The map of the first answer's hardest pull: computed once, then stored; and the errors."""
    clicks, errors = [], 0
    shutil.rmtree(home / "cache" / KEPT, ignore_errors=True)  # of an earlier measurement
    with explorer(home) as link:
        for width in WIDTHS:
            with browser_page(width) as (page, wrong):
                page.set_default_timeout(PATIENCE_MS)
                for _ in range(REPEATS):
                    page.goto(link)
                    clicks.append(click_to_map(page))
                errors += len(wrong)
    computed, *stored = clicks
    return {
        "computed_map_s": computed,
        "explorer_click_to_map_s": statistics.median(stored),
    }, errors


def click_to_map(page: Any) -> float:
    """Seconds from a click on a pair until its map's cells are drawn."""
    page.locator("#view td a").first.wait_for()
    page.wait_for_function("document.querySelector('#status').innerText === ''")
    began = time.perf_counter()
    page.locator("#view td a").first.click()
    page.locator(".plot .hm image").first.wait_for(state="attached")
    return time.perf_counter() - began
