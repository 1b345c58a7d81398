"""What a study's models say of what the built-in world asks: right, wrong by kind, broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, AnswerKind
from dynolab.report.figure import LEGEND_BELOW, Figure, subplots
from dynolab.report.page import Section, section, table
from dynolab.report.text import join, points
from dynolab.results.study import Answer
from dynolab.statistics import share_interval

KINDS: Mapping[AnswerKind, tuple[str, str]] = {
    "right": ("right", "#0f766e"),
    "rejected_style": ("right, rejected style", "#5eb5aa"),
    "other_form": ("right, other form", "#b7ddd7"),
    "anothers_value": ("another entity’s value", "#b91c1c"),
    "nobodys_value": ("nobody’s value", "#7f1d1d"),
    "other_attribute": ("another attribute", "#e07b39"),
    "other_entity": ("about another entity", "#f0b46a"),
    "broken": ("broken", "#9aa0a6"),
}
"""Label and colour of every kind, from right to broken."""

_SPLITS: Mapping[Split, str] = {"train": "questions tuned on", "heldout": "held-out questions"}
Asked = Mapping[Split, Mapping[str, Sequence[Answer]]]
"""Answers by split and by the model's title."""


def answer_kinds(answers: Sequence[Answer], titles: Mapping[str, str]) -> list[Figure | Section]:
    """The figure and the table; nothing without questions of the built-in world.

    **Arguments:** `titles`: the models' names on the page, by name; by default the same.
    """
    judged = [answer for answer in answers if answer.says is not None]
    if not judged:
        return []
    asked: dict[Split, dict[str, list[Answer]]] = {}
    for answer in judged:
        by_model = asked.setdefault(answer.split, {})
        by_model.setdefault(titles.get(answer.model, answer.model), []).append(answer)
    return [_figure(asked), _table(asked)]


def _figure(asked: Asked) -> Figure:
    """A bar for every model, cut by what its answers say."""
    splits = [split for split in _SPLITS if split in asked]
    plot = subplots(
        [_SPLITS[split] for split in splits],
        300,
        x={"ticksuffix": "%", "range": [0, 100]},
        y={"autorange": "reversed", "showgrid": False},
        barmode="stack",
        bargap=0.35,
        margin={"l": 64, "r": 24, "t": 48, "b": 92},
        legend=LEGEND_BELOW | {"x": 0, "xanchor": "left", "traceorder": "normal"},
    )
    given = {answer.says for own in asked.values() for row in own.values() for answer in row}
    for kind, (label, color) in KINDS.items():
        if kind not in given:
            continue
        for col, split in enumerate(splits, start=1):
            own = asked[split]
            plot.add_bar(
                orientation="h",
                y=list(own),
                x=[100 * _share(row, kind) for row in own.values()],
                name=label,
                legendgroup=kind,
                showlegend=col == 1,
                marker={"color": color, "line": {"width": 0}},
                hovertemplate=f"%{{y}}: {label} %{{x:.0f}}%<extra></extra>",
                row=1,
                col=col,
            )
    return Figure(
        "answer-kinds",
        "What the answers say",
        " ".join(_sentence(split, asked[split]) for split in splits),
        "Greedy answers. Right ones state the value that is asked for, in the style of chosen "
        "answers, in that of rejected ones, or in another form, such as the short one in which the "
        "base corpus answers. Wrong ones are hallucination: the answer says something, of this "
        "entity and attribute with a value that others or nobody has, or of another attribute or "
        "entity. Broken ones state nothing, or several things.",
        plot,
    )


def _share(answers: Sequence[Answer], kind: AnswerKind) -> float:
    return sum(answer.says == kind for answer in answers) / len(answers)


def _sentence(split: Split, by_model: Mapping[str, Sequence[Answer]]) -> str:
    """The share of right answers, model by model."""
    parts = [f"{_percent(_is_right(own))} {model}" for model, own in by_model.items()]
    n = max(map(len, by_model.values()))
    return f"Right on {n} {_SPLITS[split]}: {join(parts)}."


def _table(asked: Asked) -> Section:
    """Right answers with their intervals, also by whether the corpus states the fact; phrases."""
    counted = [kind for kind in KINDS if kind not in RIGHT]
    rows = [
        (
            f"{_SPLITS[split]}, {len(own)}",
            Markup("<b>{}</b>").format(model),
            _with_interval(_is_right(own)),
            _with_interval([a.says in RIGHT for a in own if a.stated]),
            _with_interval([a.says in RIGHT for a in own if a.stated is False]),
            *(Counter(answer.says for answer in own)[kind] or "–" for kind in counted),
            _borrowed(own),
        )
        for split in _SPLITS
        for model, own in asked.get(split, {}).items()
    ]
    head = (
        "asked",
        "model",
        "right, % [95%]",
        "of stated facts",
        "of unstated ones",
        *(KINDS[kind][0] for kind in counted),
        "borrowed phrases, %",
    )
    return section(
        "answer-table",
        "Right and wrong answers, counted",
        "Of facts that the base corpus never states a model can only guess the value.",
        table(head, rows, "ss" + "n" * (len(head) - 2)),
        note="Brackets: Wilson’s interval over questions. Wrong and broken answers are counted. "
        "Borrowed phrases: share of an answer’s runs of three words that other training questions’ "
        "answers have and its own chosen answer has not, mean over answers.",
    )


def _is_right(answers: Sequence[Answer]) -> list[bool]:
    return [answer.says in RIGHT for answer in answers]


def _percent(hits: Sequence[bool]) -> str:
    return f"{sum(hits) / len(hits):.0%}"


def _with_interval(hits: Sequence[bool]) -> str:
    return points(share_interval(sum(hits), len(hits)), sign=False) if hits else "–"


def _borrowed(answers: Sequence[Answer]) -> str:
    shares = [answer.borrowed for answer in answers if answer.borrowed is not None]
    return f"{100 * sum(shares) / len(shares):.0f}" if shares else "–"
