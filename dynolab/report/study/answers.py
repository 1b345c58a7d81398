"""What a study's models answer: side by side, and counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.world.answer_kinds import RIGHT
from dynolab.grouping import grouped
from dynolab.report.page import Section, Words, table
from dynolab.report.style import ANSWER_KINDS, SPLITS, excerpt, number, points
from dynolab.results.study import Answer, Generation
from dynolab.statistics import share_interval

_SHOWN = 4  # prompts of each split whose answers are shown
_EXAMPLES = 3  # answers that are another question's, of each model
_LENGTH = 600  # characters of an answer
_REPEATS = ("tokens", "distinct_1", "distinct_2", "distinct_3", "longest_repeat", "entropy")


def answer_sections(
    answers: Sequence[Answer], titles: Mapping[str, str], prompts: Mapping[str, str], words: Words
) -> list[Section | None]:
    """The first prompts' answers by model, their counts, and answers to another question.

    **Arguments:** `titles`: the models' names on the page, by name; `prompts`: of the training
    questions, by id. Empty without answers.
    """
    if not answers:
        return []
    models = list(dict.fromkeys(answer.model for answer in answers))
    asked: defaultdict[str, dict[str, Answer]] = defaultdict(dict)
    for answer in answers:
        asked[answer.pair_id][answer.model] = answer
    groups: dict[tuple[str, str], list[Answer]] = grouped(
        ((answer.model, answer.split), answer) for answer in answers
    )
    shown = [
        (
            SPLITS[split],
            Markup("<b>{}</b>").format(excerpt(first.prompt, end=True)),
            excerpt(first.chosen),
            *(_said(by_model.get(model)) for model in models),
        )
        for split in SPLITS
        for by_model in [own for own in asked.values() if _first(own).split == split][:_SHOWN]
        for first in [_first(by_model)]
    ]
    names = [titles.get(model, model) for model in models]
    taken = [
        (
            titles.get(answer.model, answer.model),
            *(
                excerpt(text, 90, end=end)
                for text, end in (
                    (answer.prompt, True),
                    (answer.answer, False),
                    (prompts.get(answer.taken_from or "", answer.taken_from or ""), True),
                )
            ),
        )
        for (_, split), own in groups.items()
        if split == "heldout"
        for answer in [each for each in own if each.taken_from is not None][:_EXAMPLES]
    ]
    head = ("model", "held-out question", "its answer", "answers the training question")
    return [
        words.table("answers", ("split", "prompt", "chosen y⁺", *names), shown),
        words.section("answer-counts", _counts(groups, titles)),
        words.table("taken", head, taken),
    ]


def _first(by_model: Mapping[str, Answer]) -> Answer:
    return next(iter(by_model.values()))


def _said(answer: Answer | None) -> str | Markup:
    if answer is None:
        return "–"
    text = excerpt(answer.answer, _LENGTH) + ("" if answer.finished else " …")
    if answer.says is None:
        return text
    mark = "✓" if answer.says in RIGHT else "✗"
    kind = ANSWER_KINDS[answer.says][0]
    return Markup('{}<br><small class="quiet">{} {}</small>').format(text, mark, kind)


def _counts(
    groups: Mapping[tuple[str, str], Sequence[Answer]], titles: Mapping[str, str]
) -> Markup:
    """A row for every model and split: shares of answers with Wilson's intervals, in percent."""
    given = {answer.says for own in groups.values() for answer in own}
    kinds = {kind: label for kind, (label, _) in ANSWER_KINDS.items() if kind in given}
    rows = []
    for (model, split), own in groups.items():
        judged = [answer for answer in own if answer.says is not None]
        hits = {
            "different": len({answer.answer for answer in own}),
            "taken": sum(answer.taken_from is not None for answer in own),
            "whole": sum(answer.taken_exactly for answer in own),
        }
        borrowed = [answer.borrowed for answer in own if answer.borrowed is not None]
        rows.append(
            (
                titles.get(model, model),
                SPLITS["train" if split == "train" else "heldout"],
                len(own),
                *(points(share_interval(hits[name], len(own)), sign=False) for name in hits),
                number(100 * sum(borrowed) / len(borrowed)) if borrowed else "–",
                *(_right(judged, stated) for stated in (None, True, False) if kinds),
                *(sum(answer.says == kind for answer in judged) for kind in kinds),
            )
        )
    counted = ["model", "split", "asked", "different, %", "another’s answer, %", "wholly, %"]
    judged_as = ["right, %", "right of stated facts, %", "right of others, %"] if kinds else []
    head = [*counted, "borrowed phrases, %", *judged_as, *kinds.values()]
    return table(head, rows, "ss" + "n" * (len(head) - 2))


def _right(judged: Sequence[Answer], stated: bool | None) -> str:
    own = [answer for answer in judged if stated is None or answer.stated is stated]
    hits = sum(answer.says in RIGHT for answer in own)
    return points(share_interval(hits, len(own)), sign=False) if own else "–"


def repeater_section(
    generations: Sequence[Generation], titles: Mapping[str, str], words: Words
) -> Section | None:
    """How much every model's answers repeat themselves; None without answers."""
    rows = [
        (
            titles.get(model, model),
            len(own),
            points(share_interval(sum(row.repeater for row in own), len(own)), sign=False),
            *(number(sum(getattr(row, name) for row in own) / len(own)) for name in _REPEATS),
            number(100 * sum(row.finished for row in own) / len(own)),
        )
        for model, own in grouped((row.model, row) for row in generations).items()
    ]
    head = ("model", "answers", "repeaters, %", "tokens", "distinct-1", "distinct-2", "distinct-3")
    more = ("longest repeat", "entropy, nats", "finished, %")
    return words.table("repeaters", (*head, *more), rows, "snnnnnnnnn")
