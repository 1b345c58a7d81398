"""Builds every HTML page from one set of Jinja2 templates, with plotly.js inlined.

Templates escape every value; a content-security policy allows only the page's own scripts.
`Markup` is HTML that this package made itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from dynolab.report.figure import Figure
from dynolab.report.inputs.study import StageFacts
from dynolab.report.style import (
    DARK,
    SPLITS,
    excerpt,
    join,
    number,
    objective_name,
    points,
    with_interval,
)
from dynolab.report.terms import terms_in, with_terms
from dynolab.statistics import Interval

_LOADER = PackageLoader("dynolab.report")
_TEMPLATES = Environment(
    loader=_LOADER,
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _plot_json(plot: go.Figure) -> Markup:
    """The plot as JSON, with `<` escaped so that it cannot end the script element around it."""
    return htmlsafe_json_dumps(plot, dumps=lambda figure: figure.to_json())


_TEMPLATES.filters |= {
    "plot_json": _plot_json,
    "with_terms": with_terms,
    "number": number,
    "excerpt": excerpt,
    "interval": with_interval,
    "points": points,
    "listed": lambda parts: join([str(part) for part in parts]),
    "split": SPLITS.__getitem__,
    "objective": objective_name,
}
# Each line of a block of words is a sentence, also after a tag.
_WORDS = _TEMPLATES.overlay(trim_blocks=False, lstrip_blocks=False)


def _asset(name: str) -> Markup:
    source, _, _ = _LOADER.get_source(_TEMPLATES, name)
    return Markup(source)


PARTS: Any = _TEMPLATES.get_template("parts.html").module
"""The macros of `parts.html`."""
_STYLE, _SCRIPT = _asset("page.css"), _asset("page.js")


ANSWER = "answer.txt"
"""The page's answer to its question as plain text, a sentence a line; else its first finding."""


@dataclass(frozen=True)
class Section:
    """A section: its title, its finding in a sentence, its content, and how to read it."""

    name: str
    title: str
    message: str
    content: Sequence[Markup] = ()
    note: str = ""

    @property
    def markup(self) -> Markup:
        """The section as HTML, with links to the page's glossary."""
        return Markup(PARTS.section(self, terms=True))


@dataclass(frozen=True)
class Fold:
    """Sections under one heading, which a reader opens. None is a part that was not measured."""

    name: str
    title: str
    content: Sequence[Figure | Section | None]

    @property
    def sections(self) -> list[Section]:
        """The sections that were measured; a figure as a section."""
        return [as_section(part) for part in self.content if part is not None]

    @property
    def markup(self) -> Markup:
        """The fold as HTML."""
        return Markup(PARTS.fold(self))


Part = Figure | Section | Fold | None
"""A part of a page; None was not measured."""


@dataclass(frozen=True)
class Page:
    """Everything on one page.

    `name` is part of the browser's title, and the page's heading if `heading` is empty. `answer` is
    the page's answer to its question, sentence by sentence, which the command line prints too;
    `printed` follows it there, as plain text; `more` goes on from it on the page alone; `lead` says
    what it was made from.
    `settings` and `stages` show what the page was made from, if a stage made it. `coming`: the
    stages that the page waits for; until they have ended it says so and loads itself again.
    """

    name: str
    lead: str
    content: Sequence[Part]
    answer: Sequence[str | Markup] = ()
    printed: str = ""
    more: Sequence[str | Markup] = ()
    heading: str = ""
    settings: str | None = None
    stages: Sequence[StageFacts] | None = None
    coming: Sequence[str] = ()


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    numeric: str = "",
    *,
    cards: bool = False,
) -> Markup:
    """A table; `numeric` holds an `n` for each column of numbers and any other letter elsewhere.

    **Arguments:** `cards`: on a narrow screen a row is a list of its cells with their columns'
    names, in place of a table that scrolls.
    """
    return Markup(PARTS.table(head, list(rows), numeric, cards))


def section(name: str, title: str, message: str, *content: Markup, note: str = "") -> Section:
    """A section with its content in order."""
    return Section(name, title, message, content, note)


class Words:
    """The texts of a page: blocks of a template, filled with the page's numbers.

    A section `runs` has its title in the block `runs_title`, its finding in `runs_message`, and how
    to read it in `runs_note`.

    **Arguments:** `template`: its file in `templates/`, or the path of another; `values`: what its
    blocks may name.
    """

    def __init__(self, template: str | Path, **values: object) -> None:
        self._template = (
            _WORDS.from_string(template.read_text(encoding="utf-8"))
            if isinstance(template, Path)
            else _WORDS.get_template(template)
        )
        self._context = self._template.new_context(values)

    def __call__(self, block: str) -> Markup:
        """A block's text on one line; empty without such a block."""
        return Markup(" ").join(self.lines(block))

    def lines(self, block: str) -> list[Markup]:
        """A block's lines that hold text."""
        render = self._template.blocks.get(block)
        text = "".join(render(self._context)) if render else ""
        return [Markup(" ".join(line.split())) for line in text.split("\n") if line.strip()]

    def section(self, name: str, *content: Markup) -> Section:
        """A section with its title, finding and note from the template."""
        title, message, note = self._texts(name)
        return section(name, title, message, *content, note=note)

    def table(
        self,
        name: str,
        head: Sequence[str],
        rows: Iterable[Sequence[object]],
        numeric: str = "",
        *,
        cards: bool = False,
    ) -> Section | None:
        """A section of one table, whose arguments are those of `table`; None without rows."""
        lines = list(rows)
        return self.section(name, table(head, lines, numeric, cards=cards)) if lines else None

    def figure(self, name: str, plot: go.Figure) -> Figure:
        """A figure with its title, finding and note from the template."""
        return Figure(name, *self._texts(name), plot)

    def page(self, name: str, content: Sequence[Part], **parts: Any) -> Page:
        """A page whose heading, answer and lead are from the template; `parts` as in `Page`."""
        texts = {
            "heading": self("heading"),
            "answer": self.lines("answer"),
            "more": self.lines("more"),
            "lead": self("lead"),
        }
        return Page(name=name, content=content, **(texts | parts))

    def _texts(self, name: str) -> tuple[Markup, Markup, Markup]:
        block = name.replace("-", "_")
        return self(f"{block}_title"), self(f"{block}_message"), self(f"{block}_note")


def as_section(part: Figure | Section) -> Section:
    """A figure with its finding above and its note on how to read it below; else the section."""
    if isinstance(part, Section):
        return part
    return Section(part.name, part.title, part.message, (Markup(PARTS.figure(part)),), part.note)


def stage_section(stages: Sequence[StageFacts]) -> Section:
    """The stages that the page was made from, with their keys."""
    seconds = sum(stage.seconds or 0.0 for stage in stages)
    code = Markup("<code>{}</code>").format
    rows = []
    for stage in stages:
        key = code(stage.key[:16] + ("…" if len(stage.key) > 16 else ""))
        duration = "–" if stage.seconds is None else f"{stage.seconds:.1f}"
        run = code(stage.mlflow_run_id) if stage.mlflow_run_id else "–"
        rows.append((stage.stage, key, duration, run))
    return section(
        "stages",
        "Stages",
        f"This page was made from {len(stages)} stages, which took {seconds:.0f} s to compute."
        if stages
        else "The stages are not known.",
        table(("stage", "key", "seconds", "MLflow run"), rows, "ssns"),
        note="Seconds: time of the computation, also of results that were taken from the store.",
    )


def page_html(page: Page) -> str:
    """A self-contained page: plotly.js is inlined, nothing is loaded, two known scripts may run."""
    parts: list[Section | Fold] = []
    for part in page.content:
        if isinstance(part, Fold) and part.sections:
            parts.append(part)
        elif isinstance(part, Figure | Section):
            parts.append(as_section(part))
    made_from = [] if page.stages is None else [stage_section(page.stages)]
    if page.settings is not None:
        code = Markup("<pre>{}</pre>").format(page.settings)
        made_from.append(section("config", "Settings", "", code))
    if made_from:
        parts.append(Fold("made-from", "What this page was made from", made_from))
    body = Markup("\n").join(part.markup for part in parts)
    return _html(
        f"Dynolab: {page.name}", body, (Markup(get_plotlyjs()), _SCRIPT), page=page, parts=parts
    )


def write_page(page: Page, folder: Path, file: str) -> None:
    """Writes the page, `answer.txt` with its answer or first finding, and `figures/`.

    A figure is `<name>.html` and `<name>.json` (plotly), beside one `plotly.min.js`.
    """
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    write_text(folder / file, page_html(page))
    answer = page.answer or _first_finding(page)
    if answer:
        plain = [Markup(sentence).striptags() for sentence in map(escape, answer)]
        printed = ["", page.printed] if page.printed else []
        write_text(folder / ANSWER, "\n".join([*plain, *printed]) + "\n")
    write_text(figures / "plotly.min.js", get_plotlyjs())
    for part in page.content:
        for figure in part.content if isinstance(part, Fold) else [part]:
            if isinstance(figure, Figure):
                write_text(figures / f"{figure.name}.json", figure.plot.to_json())
                body = Markup(PARTS.section(as_section(figure), terms=False))
                page_of_figure = _html(figure.title, body, (_SCRIPT,), plotly_file="plotly.min.js")
                write_text(figures / f"{figure.name}.html", page_of_figure)


def _first_finding(page: Page) -> list[str]:
    """The first message on a page without an answer."""
    messages = [part.message for part in page.content if isinstance(part, Figure | Section)]
    return [message for message in messages if message][:1]


def write_text(path: Path, content: str) -> None:
    """Writes UTF-8 text with the same line ends on every system."""
    path.write_text(content, encoding="utf-8", newline="\n")


def as_dicts(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float | int | None]]:
    """Intervals for JSON."""
    return {name: interval.as_dict() for name, interval in intervals.items()}


def write_summary(summary: dict[str, Any], folder: Path) -> dict[str, float]:
    """Writes `summary.json`. **Returns** its `metrics`, flat finite numbers."""
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    metrics: dict[str, float] = summary["metrics"]
    return metrics


def _html(
    title: str,
    body: Markup,
    scripts: Sequence[Markup],
    *,
    page: Page | None = None,
    parts: Sequence[Section | Fold] = (),
    plotly_file: str = "",
) -> str:
    """Fills the page template; without `page`, with the body alone."""
    allowed = ["'self'", "file:"] if plotly_file else []
    for text in scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest())
        allowed.append(f"'sha256-{digest.decode()}'")
    head = Markup(PARTS.head(page)) if page else Markup()
    return _TEMPLATES.get_template("page.html").render(
        title=title,
        head=head,
        body=body,
        page=page,
        parts=parts,
        glossary=terms_in(head + body) if page else {},
        scripts=scripts,
        plotly_file=plotly_file,
        allowed=allowed,
        style=_STYLE,
        dark=DARK,
    )
