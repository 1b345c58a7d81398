"""Names tokens so that a reader finds them in their text."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.report.ledger.coloured import Tokens
from dynolab.report.text import number

_WORD = 24
"""Characters of a word that is named."""

_LEAST = 0.05
"""Of the hardest token's push: what a token must push to be named."""

_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def strongest_tokens(tokens: Tokens, count: int = 3, *, down: bool = False) -> str:
    """The tokens that pushed hardest, with their numbers; with `down`, those that pulled down.

    Without tokens that pushed less than a twentieth of the hardest.
    """
    places = [place for place, (_, nats) in enumerate(tokens) if nats < 0 or not down]
    most = sorted(places, key=lambda place: -abs(tokens[place][1]))[:count]
    most = [p for p in most if abs(tokens[p][1]) >= _LEAST * abs(tokens[most[0]][1])]
    return ", ".join(
        f"{token_in_text(tokens, place)} {number(tokens[place][1], 2, sign=True)}" for place in most
    )


def token_in_text(tokens: Tokens, place: int) -> str:
    """A token with its word, or the word before it, and which of several that is."""
    texts = [token for token, _ in tokens]
    named = [_part_and_word(texts, other) for other in range(len(texts))]
    part, word, begin = named[place]
    same = [other for other, name in enumerate(named) if name[:2] == (part, word)]
    beside = [other for other in same if named[other][2] == begin]  # at the same word
    words = list(dict.fromkeys(named[other][2] for other in same))
    if word and len(words) > 1:
        word = f"the {_ordinal(words.index(begin) + 1)} {word}"
    if len(beside) > 1:
        part = f"the {_ordinal(beside.index(place) + 1)} {part.removeprefix('a ')}"
    return "".join(c if c.isprintable() else "�" for c in f"{part}{word}")


def _ordinal(number_of: int) -> str:
    return _ORDINALS.get(number_of, f"{number_of}th")


def _part_and_word(texts: Sequence[str], place: int) -> tuple[str, str, int]:
    """Which part of a word a token is, empty for all of it; the word in quotes, and its place."""
    own = texts[place].strip()
    if not any(map(str.isalnum, own)):
        written = f"“{own}”" if own else "a line break" if "\n" in texts[place] else "a space"
        before = next((p for p in range(place - 1, -1, -1) if _holds_letters(texts[p])), None)
        return (written, "", -1) if before is None else (f"{written} after ", *_word(texts, before))
    word, begin = _word(texts, place)
    return ("", word, begin) if word == f"“{own}”" else (f"“{own}” of ", word, begin)


def _word(texts: Sequence[str], place: int) -> tuple[str, int]:
    """The word that a token is a part of, in quotes; of a long one this token alone. Its place."""
    begin = end = place
    while begin and not texts[begin][:1].isspace() and texts[begin - 1][-1:].isalnum():
        begin -= 1
    while end + 1 < len(texts) and texts[end][-1:].isalnum() and texts[end + 1][:1].isalnum():
        end += 1
    word = "".join(texts[begin : end + 1]).strip()
    if len(word) <= _WORD:
        return f"“{word}”", begin
    return f"“{texts[place].strip()}”", place


def _holds_letters(text: str) -> bool:
    return any(map(str.isalnum, text))
