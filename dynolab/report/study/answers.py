"""What a study's models answer: side by side, and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from markupsafe import Markup

from dynolab.data.world.answer_kinds import RIGHT
from dynolab.grouping import attributes, grouped
from dynolab.report.page import Section, Words, table
from dynolab.report.style import ANSWER_KINDS, SPLITS, excerpt, number, numbers, points
from dynolab.results.study import Answer, Generation
from dynolab.statistics import column, mean_interval, share_interval

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
    groups: dict[tuple[str, str], list[Answer]] = grouped(
        ((answer.model, answer.split), answer) for answer in answers
    )
    names = [titles.get(model, model) for model in models]
    first_head = ("split", "prompt", "chosen y⁺", *names)
    head = ("model", "held-out question", "its answer", "answers the training question")
    return [
        words.table("answers", first_head, _side_by_side(answers, models)),
        words.section("answer-counts", _counts(groups, titles)),
        words.table("taken", head, _of_other_questions(groups, titles, prompts)),
    ]


def _side_by_side(answers: Sequence[Answer], models: Sequence[str]) -> Sequence[Sequence[object]]:
    """The first questions of each split, with every model's answer."""
    rows = []
    for split, title in SPLITS.items():
        by_question = grouped(
            (answer.pair_id, answer) for answer in answers if answer.split == split
        )
        for of_question in list(by_question.values())[:_SHOWN]:
            first, by_model = of_question[0], {answer.model: answer for answer in of_question}
            prompt = Markup("<b>{}</b>").format(excerpt(first.prompt, end=True))
            texts = [_answer_text(by_model.get(model)) for model in models]
            rows.append((title, prompt, excerpt(first.chosen), *texts))
    return rows


def _of_other_questions(
    groups: Mapping[tuple[str, str], Sequence[Answer]],
    titles: Mapping[str, str],
    prompts: Mapping[str, str],
) -> Sequence[Sequence[object]]:
    """Held-out questions that a model answers as another, a training question."""
    rows = []
    for (model, split), answers in groups.items():
        examples = [answer for answer in answers if answer.taken_from is not None]
        for answer in examples[:_EXAMPLES] if split == "heldout" else ():
            source = answer.taken_from or ""
            asked_for = excerpt(prompts.get(source, source), 90, end=True)
            question = excerpt(answer.prompt, 90, end=True)
            rows.append((titles.get(model, model), question, excerpt(answer.answer, 90), asked_for))
    return rows


def _answer_text(answer: Answer | None) -> str | Markup:
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
    rows = []
    kinds_said = set(attributes(chain(*groups.values()), "says"))
    kinds = [kind for kind in ANSWER_KINDS if kind in kinds_said]
    for (model, split), answers in groups.items():
        texts, sources = attributes(answers, "answer"), attributes(answers, "taken_from")
        exact, borrowed = attributes(answers, "taken_exactly"), column(answers, "borrowed")
        row: list[object] = [
            titles.get(model, model),
            SPLITS["train" if split == "train" else "heldout"],
            len(answers),
            _share(len(set(texts)), len(answers)),
            _share(len(answers) - sources.count(None), len(answers)),
            _share(sum(exact), len(answers)),
            number(100 * mean_interval(borrowed).mean),
        ]
        if kinds:
            judged = [answer for answer in answers if answer.says is not None]
            of_stated = [answer for answer in judged if answer.stated is True]
            of_others = [answer for answer in judged if answer.stated is False]
            row += [_right(judged), _right(of_stated), _right(of_others)]
            row += map(attributes(judged, "says").count, kinds)
        rows.append(row)
    head = ["model", "split", "questions", "different answers, %"]
    head += ["answers of another question, %", "these word for word, %", "borrowed phrases, %"]
    if kinds:
        head += ["right, %", "right of stated facts, %", "right of others, %"]
        head += [ANSWER_KINDS[kind][0] for kind in kinds]
    return table(head, rows, "ss" + "n" * (len(head) - 2))


def _share(hits: int, count: int) -> str:
    return points(share_interval(hits, count), sign=False) if count else "–"


def _right(answers: Sequence[Answer]) -> str:
    """The share of answers that are right."""
    return _share(sum(answer.says in RIGHT for answer in answers), len(answers))


def repeater_section(
    generations: Sequence[Generation], titles: Mapping[str, str], words: Words
) -> Section | None:
    """How much every model's answers repeat themselves; None without answers."""
    rows = []
    for model, answers in grouped((row.model, row) for row in generations).items():
        repeaters = _share(sum(row.repeater for row in answers), len(answers))
        means = [column(answers, name).mean() for name in _REPEATS]
        finished = 100 * column(answers, "finished").mean()
        title = titles.get(model, model)
        rows.append((title, len(answers), repeaters, *numbers(*means, finished)))
    head = ("model", "answers", "repeaters, %", "tokens", "distinct-1", "distinct-2", "distinct-3")
    more = ("longest repeat", "entropy, nats", "finished, %")
    return words.table("repeaters", (*head, *more), rows, "snnnnnnnnn")
