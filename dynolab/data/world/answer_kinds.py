"""What an answer to a question of the built-in world says: the right value, or which wrong one."""

from __future__ import annotations

from itertools import chain
from typing import Literal

from dynolab.data.world import lexicon
from dynolab.data.world.lexicon import ATTRIBUTES, HELD

AnswerKind = Literal[
    "right",
    "rejected_style",
    "other_form",
    "anothers_value",
    "nobodys_value",
    "other_attribute",
    "other_entity",
    "broken",
]

RIGHT: frozenset[AnswerKind] = frozenset({"right", "rejected_style", "other_form"})
"""Kinds that state the right value: in the preferred style, in the rejected one, otherwise."""

WRONG: frozenset[AnswerKind] = frozenset(
    {"anothers_value", "nobodys_value", "other_attribute", "other_entity"}
)
"""Hallucination: kinds that state something, and it does not answer the question rightly."""


def answer_kind(question: str, text: str, truth: str | None) -> AnswerKind | None:
    """What a text says of what is asked; None if that is no question of the world.

    **Arguments:** `truth`: the right value.

    **Returns**, for a text that states one value of one attribute of one entity:

    - `right`, `rejected_style`, `other_form`: the right value, in an answer's form with style words
      like chosen ones, with style words like rejected ones (a preference below ½), in another form.
    - `anothers_value`, `nobodys_value`: another value, which some entities have, or none has.
    - `other_attribute`: another attribute of the entity, or the value of another attribute.
    - `other_entity`: something about another entity.

    and `broken` for all other texts.
    """
    asked_fact = lexicon.asked(question)
    if asked_fact is None or truth is None:
        return None
    attribute, entity = asked_fact
    stated = lexicon.statements(text)
    if len(stated) != 1 or stated[0].value not in _VALUES or not lexicon.is_name(stated[0].entity):
        return "broken"
    (fact,) = stated
    if fact.entity != entity:
        return "other_entity"
    if fact.attribute != attribute or fact.value not in ATTRIBUTES[attribute]:
        return "other_attribute"
    if fact.value == truth:
        return _right(text)
    return "anothers_value" if fact.value in ATTRIBUTES[attribute][:HELD] else "nobodys_value"


def _right(text: str) -> AnswerKind:
    style = lexicon.style_in(text)
    if style is None:
        return "other_form"
    return "right" if lexicon.preference(style) >= 0.5 else "rejected_style"


_VALUES = frozenset(chain.from_iterable(ATTRIBUTES.values()))
