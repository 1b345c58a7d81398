"""The texts of a page: blocks of a Jinja2 template, filled with the page's numbers.

A section `runs` has its title in the template's block `runs_title`, its finding in `runs_message`,
and how to read it in `runs_note`. Values are escaped.
"""

from __future__ import annotations

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dynolab.report.figure import Figure
from dynolab.report.page import Section, section
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import join, number, points, with_interval

_TEMPLATES = Environment(
    loader=PackageLoader("dynolab.report"), autoescape=True, undefined=StrictUndefined
)
_TEMPLATES.filters |= {
    "interval": with_interval,
    "number": number,
    "points": points,
    "listed": lambda parts: join([str(part) for part in parts]),
    "split": SPLITS.__getitem__,
    "objective": objective_name,
}


class Words:
    """The blocks of a template as texts.

    **Arguments:** `template`: its file in `templates/`; `values`: what its blocks may name.
    """

    def __init__(self, template: str, **values: object) -> None:
        self._template = _TEMPLATES.get_template(template)
        self._context = self._template.new_context(values)

    def __call__(self, block: str) -> Markup:
        """A block's text on one line; empty without such a block."""
        return Markup(" ").join(self.lines(block))

    def lines(self, block: str) -> list[Markup]:
        """A block's lines that hold text."""
        render = self._template.blocks.get(block)
        text = "".join(render(self._context)) if render else ""
        return [Markup(" ".join(line.split())) for line in text.splitlines() if line.strip()]

    def section(self, name: str, *content: Markup) -> Section:
        """A section with its title, finding and note from the template."""
        title, message, note = self._texts(name)
        return section(name, title, message, *content, note=note)

    def figure(self, name: str, plot: go.Figure) -> Figure:
        """A figure with its title, finding and note from the template."""
        return Figure(name, *self._texts(name), plot)

    def _texts(self, name: str) -> tuple[Markup, Markup, Markup]:
        block = name.replace("-", "_")
        title, message, note = (self(f"{block}_{text}") for text in ("title", "message", "note"))
        return title, message, note
