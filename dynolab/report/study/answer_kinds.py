"""What a study's models say of what the built-in world asks: right, wrong by kind, broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import RIGHT, AnswerKind
from dynolab.report.figure import LEGEND_BELOW, Figure, subplots
from dynolab.report.page import Section, section, table
from dynolab.report.style import ANSWER_KINDS
from dynolab.report.text import join
from dynolab.results.study import Answer
from dynolab.statistics import share_interval

_SPLITS: Mapping[Split, str] = {"train": "questions tuned on", "heldout": "held-out questions"}
_SHORT: Mapping[Split, str] = {"train": "tuned on", "heldout": "held out"}
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
    for kind, (label, color) in ANSWER_KINDS.items():
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
    """What is counted row by row, model by model: right, wrong by kind, broken; phrases."""
    columns = [own for split in _SPLITS for own in asked.get(split, {}).values()]
    given = {answer.says for own in columns for answer in own}
    bold = Markup("<b>{}</b>").format
    rows: list[tuple[object, ...]] = [
        (bold("right, % [95%]"), *(_with_interval(_is_right(own)) for own in columns)),
        ("… of facts that the corpus states", *(_right_if(own, stated=True) for own in columns)),
        ("… of facts that it does not state", *(_right_if(own, stated=False) for own in columns)),
        *(
            (f"{label}, number", *(_count(own, kind) for own in columns))
            for kind, (label, _) in ANSWER_KINDS.items()
            if kind in given
        ),
        ("borrowed phrases, %", *(_borrowed(own) for own in columns)),
    ]
    head = [f"{model}, {_SHORT[split]}" for split in _SPLITS for model in asked.get(split, {})]
    return section(
        "answer-table",
        "Right and wrong answers, counted",
        _known_sentence(asked),
        table(("", *head), rows, "s" + "n" * len(columns)),
        note="Brackets: Wilson’s interval over questions. Of facts that the base corpus never "
        "states, a model can learn the value in finetuning or guess it. Borrowed phrases: share of "
        "an answer’s runs of three words that answers to other training questions have and its own "
        "chosen answer has not, mean over answers.",
    )


def _known_sentence(asked: Asked) -> str:
    """How the last model does on held-out facts that the corpus states, and on others."""
    split: Split = "heldout" if "heldout" in asked else "train"
    model, own = list(asked[split].items())[-1]
    stated, others = (
        [answer.says in RIGHT for answer in own if answer.stated is known]
        for known in (True, False)
    )
    parts = [
        f"{_percent(hits)} of the answers about {facts}"
        for hits, facts in ((stated, "facts that its base corpus states"), (others, "others"))
        if hits
    ]
    return f"On {_SPLITS[split]} {model} is right in {join(parts)}."


def _is_right(answers: Sequence[Answer]) -> list[bool]:
    return [answer.says in RIGHT for answer in answers]


def _right_if(answers: Sequence[Answer], *, stated: bool) -> str:
    return _with_interval(_is_right([answer for answer in answers if answer.stated is stated]))


def _count(answers: Sequence[Answer], kind: AnswerKind) -> str:
    return str(sum(answer.says == kind for answer in answers) or "–")


def _percent(hits: Sequence[bool]) -> str:
    return f"{sum(hits) / len(hits):.0%}"


def _with_interval(hits: Sequence[bool]) -> str:
    if not hits:
        return "–"
    share = share_interval(sum(hits), len(hits)).times(100)
    return f"{share.mean:.0f} [{share.low:.0f}, {share.high:.0f}]"


def _borrowed(answers: Sequence[Answer]) -> str:
    shares = [answer.borrowed for answer in answers if answer.borrowed is not None]
    return f"{100 * sum(shares) / len(shares):.0f}" if shares else "–"
