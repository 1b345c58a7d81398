"""A page taken apart, for tests that look into it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

from dynolab.report.style import DARK

CANARY = "<script>window.canary=1</script><img src=x onerror=canary()>"
"""Text that would be a script and an image, were it markup."""


class Parsed(HTMLParser):
    """Every element of a page with its attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def policy(self) -> str:
        return next(
            a["content"] or ""
            for tag, a in self.elements
            if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
        )


def words_of(page: Path, between: str = "") -> str:
    """What a page says, without its markup."""
    return between.join(Parsed(page.read_text()).words)


def check_figures(folder: Path, page: str) -> int:
    """Checks the figures' files and what the page holds of them. Returns how many it holds.

    Their colours have a dark partner; others would stay light.
    """
    for file in (folder / "figures").glob("*.json"):
        assert json.loads(plot := file.read_text()), file.name
        assert set(re.findall(r"#[0-9a-f]{6}", plot)) <= set(DARK), file.name
    scripts = Parsed((folder / page).read_text()).scripts
    blocks = [text for a, text in scripts if a.get("type") == "application/json"]
    assert all(json.loads(block) for block in blocks)
    return len(blocks)


def obeys_no_text(folder: Path, page: str) -> Parsed:
    """Checks that the canary is markup neither of the page nor of its figures; the page parsed."""
    figures = folder / "figures"
    for file in (folder / page, *figures.glob("*.html")):
        parsed = Parsed(file.read_text())
        assert "img" not in {tag for tag, _ in parsed.elements}, file.name
        assert not any(name.startswith("on") for _, a in parsed.elements for name in a), file.name
        for attributes, text in parsed.scripts:
            assert "canary" not in text or attributes.get("type") == "application/json", file.name
        assert "default-src 'none'" in parsed.policy
    for file in figures.glob("*.json"):
        content = file.read_text()
        assert "<img" not in content and "<script" not in content, file.name
    return Parsed((folder / page).read_text())
