"""What the models say, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynolab.report.page import Html, excerpt, section, table, text
from dynolab.report.style import SPLITS, join
from dynolab.results.study import Answer


def answer_section(answers: Sequence[Answer], titles: Mapping[str, str]) -> Html:
    """Greedy answers of every model to the first prompts: of held-out ones as many as of training.

    **Arguments:** `titles`: how models are called on the page, by name; others go by their own.
    """
    name, title = "answers", "What the models answer"
    if not answers:
        return section(name, title, "No model was asked to answer.")
    models = list(dict.fromkeys(answer.model for answer in answers))
    asked: dict[str, dict[str, Answer]] = {}
    for answer in answers:
        asked.setdefault(answer.pair_id, {})[answer.model] = answer
    rows = [
        [
            SPLITS[one.split],
            Html(f"<b>{text(excerpt(one.prompt, end=True))}</b>"),
            excerpt(one.chosen),
            *(_said(said.get(model)) for model in models),
        ]
        for said in _shown(asked)
        for one in list(said.values())[:1]
    ]
    called = [titles.get(model, model) for model in models]
    return section(
        name,
        title,
        _message(asked, models, called),
        table(("split", "prompt", "chosen y⁺", *called), rows),
        note="Greedy answers to the first prompts: the likeliest token at every position; “…” "
        "marks one that was cut off. Squeezing moves probability to what is likeliest already: "
        "under it a model goes on to say what it said before, ever more surely, while the chosen "
        "answers grow unlikely.",
    )


def _shown(asked: Mapping[str, Mapping[str, Answer]]) -> list[Mapping[str, Answer]]:
    """The first prompts of each split; far more held-out ones may be asked for their share."""
    trained, heldout = (
        [said for said in asked.values() if next(iter(said.values())).split == split]
        for split in SPLITS
    )
    return [*trained, *heldout[: len(trained) or None]]


def _said(answer: Answer | None) -> str:
    if answer is None:
        return "–"
    return answer.answer.strip() + ("" if answer.finished else " …")


def _message(
    asked: Mapping[str, Mapping[str, Answer]], models: Sequence[str], called: Sequence[str]
) -> str:
    """How many different things each model says, and how often the last one repeats the former."""
    counts: list[str] = []
    for model, title in zip(models, called, strict=True):
        different = len({said[model].answer for said in asked.values() if model in said})
        counts.append(f"{title} gives {different}" if not counts else f"{title} {different}")
    chosen = len({one.chosen for said in asked.values() for one in said.values()})
    sentence = f"{len(asked)} prompts have {chosen} different chosen answers; {join(counts)}."
    if len(models) < 2:
        return sentence
    both = [said for said in asked.values() if {models[-2], models[-1]} <= set(said)]
    same = sum(said[models[-2]].answer == said[models[-1]].answer for said in both)
    return f"{sentence} {called[-1]} repeats {called[-2]} word for word in {same} of {len(both)}."
