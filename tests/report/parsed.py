"""A page taken apart, for tests that look into it."""

from __future__ import annotations

from html.parser import HTMLParser


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
