"""A page as its reader sees it, in headless Chromium."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 30.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
READERS = [(1280, False), (390, True)]
"""Width of the screen, and whether it is dark: colours do not depend on the width."""
ENOUGH_CONTRAST = 4.5  # WCAG 2.2, 1.4.3
CONTRAST = Path(__file__).with_name("contrast.js")


def faint(page: Any) -> list[str]:
    """Texts that stand out too little from what is behind them."""
    return list(page.evaluate(CONTRAST.read_text(), ENOUGH_CONTRAST))


@contextmanager
def browser_page(width: int, *, dark: bool = False) -> Iterator[tuple[Any, list[str]]]:
    """An empty page of a new browser, and the list of its errors, which grows."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(
            viewport={"width": width, "height": 850}, color_scheme="dark" if dark else "light"
        )
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        yield page, errors
        browser.close()


@dataclass
class Seen:
    """An open page: how long it took to draw its first screen, and the console's errors."""

    page: Any
    load_seconds: float
    errors: list[str]

    def until(self, holds: str) -> None:
        """Waits for an expression: the page's own policy forbids what waits inside it."""
        deadline = time.monotonic() + PATIENCE
        while not self.page.evaluate(holds):
            assert time.monotonic() < deadline, holds
            time.sleep(0.05)


@contextmanager
def opened(file: Path, width: int, *, dark: bool = False, before: str = "") -> Iterator[Seen]:
    """Opens a file's page offline, in a new browser.

    **Arguments:** `before`: a script that runs before the page's own.
    """
    with browser_page(width, dark=dark) as (page, errors):
        page.context.set_offline(True)
        page.add_init_script(before)
        began = time.perf_counter()
        page.goto(file.resolve().as_uri())
        page.evaluate("new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)))")
        yield Seen(page, time.perf_counter() - began, errors)
