"""How often each model answers a held-out question with another training question's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynolab.probes.hallucination import SIMILAR
from dynolab.report.page import Html, excerpt, section, table
from dynolab.report.style import join, points
from dynolab.results.study import Answer
from dynolab.statistics import share_interval

_EXAMPLES = 3  # of each model
_PROMPT, _TEXT = 90, 90  # characters


def hallucination_section(
    answers: Sequence[Answer], titles: Mapping[str, str], prompts: Mapping[str, str]
) -> Html:
    """Shares by model, and examples.

    **Arguments:** `titles`: how models are called on the page, by name; `prompts`: training
    questions by id, where they are known.
    """
    name, title = "hallucination", "Another question’s answer"
    asked: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.split == "heldout":
            asked.setdefault(answer.model, []).append(answer)
    if not asked:
        return section(name, title, "No model was asked a held-out question.")
    called = {model: titles.get(model, model) for model in asked}
    counts = {
        model: sum(one.taken_from is not None for one in said) for model, said in asked.items()
    }
    told = [f"{called[model]} {counts[model]} of {len(said)}" for model, said in asked.items()]
    rows = [
        (
            called[model],
            len(said),
            _share(counts[model], len(said)),
            _share(sum(one.taken_exactly for one in said), len(said)),
        )
        for model, said in asked.items()
    ]
    examples = [
        (
            called[model],
            excerpt(one.prompt, _PROMPT, end=True),
            excerpt(one.answer, _TEXT),
            excerpt(prompts.get(one.taken_from, one.taken_from), _PROMPT, end=True),
            excerpt(one.chosen, _TEXT),
        )
        for model, said in asked.items()
        for one in [one for one in said if one.taken_from is not None][:_EXAMPLES]
        if one.taken_from is not None
    ]
    head = (
        "model",
        "held-out question",
        "its answer",
        "answers the training question",
        "chosen y⁺",
    )
    return section(
        name,
        title,
        "Held-out questions that were answered with what answers another training question: "
        f"{join(told)}.",
        table(("model", "asked", "another’s answer, % [95%]", "all of it, % [95%]"), rows, "snnn"),
        *([table(head, examples)] if examples else []),
        note="Greedy answers. In the built-in world an answer is another training question’s if "
        "the one fact that it states is what that question asks for, and all of it if the value is "
        "that question’s too. In other data it is if its words, whitespace and case aside, are "
        f"within an edit distance of {SIMILAR:.0%} of that question’s chosen answer and nearer to "
        "it than to its own chosen one, and all of it if they are equal; an answer that was cut "
        "off is compared with the beginnings. Brackets: Wilson’s interval over questions.",
    )


def _share(hits: int, n: int) -> str:
    return points(share_interval(hits, n), sign=False)
