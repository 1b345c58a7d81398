"""The models' answers side by side, and those taken from another question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.world.answer_kinds import RIGHT
from dynolab.probes.hallucination import SIMILAR
from dynolab.report.page import Section, section, table
from dynolab.report.style import ANSWER_KINDS, SPLITS
from dynolab.report.text import excerpt, join, points
from dynolab.results.study import Answer
from dynolab.statistics import share_interval

_EXAMPLES = 3  # number per model
_SHOWN = 4  # prompts of each split whose answers are shown
_LENGTH = 90  # characters of an example's texts
_ANSWER = 600  # characters of an answer
ByModel = Mapping[str, Answer]
"""The answers to one prompt."""


def answer_section(answers: Sequence[Answer], titles: Mapping[str, str]) -> Section:
    """Greedy answers of every model to the first prompts, as many held-out as training ones.

    **Arguments:** `titles`: the models' names on the page, by name; by default the same.
    """
    name, title = "answers", "What the models answer"
    if not answers:
        return section(name, title, "No model was asked to answer.")
    models = {answer.model: titles.get(answer.model, answer.model) for answer in answers}
    prompts: defaultdict[str, dict[str, Answer]] = defaultdict(dict)
    for answer in answers:
        prompts[answer.pair_id][answer.model] = answer
    rows = [
        (
            SPLITS[first.split],
            Markup("<b>{}</b>").format(excerpt(first.prompt, end=True)),
            excerpt(first.chosen),
            *(_answer(by_model.get(model)) for model in models),
        )
        for by_model in _shown(list(prompts.values()))
        for first in (next(iter(by_model.values())),)
    ]
    return section(
        name,
        title,
        _message(list(prompts.values()), models),
        table(("split", "prompt", "chosen y⁺", *models.values()), rows),
        note="Greedy answers to the first prompts: the likeliest token at every position; “…” "
        "marks one that was cut off. Squeezing moves probability to what is likeliest already: "
        "under it a model repeats its former answers with growing certainty, while the chosen "
        "answers grow unlikely.",
    )


def _shown(prompts: Sequence[ByModel]) -> list[ByModel]:
    """The first prompts of each split; more are answered, to measure shares."""
    return [
        by_model
        for split in SPLITS
        for by_model in [
            by_model for by_model in prompts if next(iter(by_model.values())).split == split
        ][:_SHOWN]
    ]


def _answer(answer: Answer | None) -> str | Markup:
    if answer is None:
        return "–"
    said = excerpt(answer.answer, _ANSWER) + ("" if answer.finished else " …")
    text = Markup("{}").format(said)
    if answer.says is None:
        return text
    mark = "✓" if answer.says in RIGHT else "✗"
    return text + Markup('<br><small class="quiet">{} {}</small>').format(
        mark, ANSWER_KINDS[answer.says][0]
    )


def _message(prompts: Sequence[ByModel], models: Mapping[str, str]) -> str:
    """How many different answers each model gives, and how often the last repeats the former."""
    different = {
        title: len({by_model[model].answer for by_model in prompts if model in by_model})
        for model, title in models.items()
    }
    counts = [
        f"{title} {'' if place else 'gives '}{count}"
        for place, (title, count) in enumerate(different.items())
    ]
    chosen = len({answer.chosen for by_model in prompts for answer in by_model.values()})
    sentence = f"{len(prompts)} prompts have {chosen} different chosen answers; {join(counts)}."
    if len(models) < 2:
        return sentence
    former, last = list(models)[-2:]
    both = [by_model for by_model in prompts if former in by_model and last in by_model]
    same = sum(by_model[former].answer == by_model[last].answer for by_model in both)
    repeats = f"{models[last]} repeats {models[former]} word for word"
    return f"{sentence} {repeats} in {same} of {len(both)}."


def hallucination_section(
    answers: Sequence[Answer], titles: Mapping[str, str], prompts: Mapping[str, str]
) -> Section:
    """How often each model answers a held-out question with another question's answer; examples.

    **Arguments:** `titles`: the models' names on the page, by name; `prompts`: known training
    questions by id.
    """
    name, title = "hallucination", "Another question’s answer"
    by_model: defaultdict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.split == "heldout":
            by_model[titles.get(answer.model, answer.model)].append(answer)
    if not by_model:
        return section(name, title, "No model was asked a held-out question.")
    taken = {
        model: [(answer, source) for answer in own if (source := answer.taken_from) is not None]
        for model, own in by_model.items()
    }
    rows = [
        (
            model,
            len(own),
            _share(len(taken[model]), len(own)),
            _share(sum(answer.taken_exactly for answer in own), len(own)),
        )
        for model, own in by_model.items()
    ]
    examples = [
        (
            model,
            excerpt(answer.prompt, _LENGTH, end=True),
            excerpt(answer.answer, _LENGTH),
            excerpt(prompts.get(source, source), _LENGTH, end=True),
            excerpt(answer.chosen, _LENGTH),
        )
        for model, own in taken.items()
        for answer, source in own[:_EXAMPLES]
    ]
    counts = [f"{model} {len(taken[model])} of {len(own)}" for model, own in by_model.items()]
    return section(
        name,
        title,
        f"Held-out questions answered with what answers another training question: {join(counts)}.",
        table(("model", "asked", "another’s answer, % [95%]", "whole, % [95%]"), rows, "snnn"),
        *(
            [
                table(
                    (
                        "model",
                        "held-out question",
                        "its answer",
                        "answers the training question",
                        "chosen y⁺",
                    ),
                    examples,
                )
            ]
            if examples
            else []
        ),
        note="Greedy answers. In the built-in world an answer is another training question’s if "
        "the one fact that it states is the one that question asks for, and wholly if the value is "
        "that question’s too. In other data it is if its words, without whitespace and case, are "
        f"within an edit distance of {SIMILAR:.0%} of that question’s chosen answer and nearer to "
        "it than to its own chosen one, and wholly if they are equal; an answer that was cut "
        "off is compared with the beginnings of chosen answers. Brackets: Wilson’s interval over "
        "questions.",
    )


def _share(hits: int, n: int) -> str:
    return points(share_interval(hits, n), sign=False)
