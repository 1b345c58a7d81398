"""Lengths of rows that are not at hand."""

from __future__ import annotations

from dynolab.data.encode import Encoded, EncodedExample

_HH = """
20/6/4 40/8/13 46/12/15 45/34/6 21/58/11 73/12/15 35/17/58 25/60/32 58/35/32 63/19/47
92/18/27 109/6/28 107/8/33 18/39/102 26/127/13 14/95/67 145/20/16 110/43/33 24/79/88
124/48/34 155/56/6 145/46/30 176/16/36 138/52/49 130/31/85 184/46/28 128/77/64 263/17/4
233/19/39 118/114/74 126/91/104 261/62/16 23/79/257 18/202/160 385/12/3 315/29/101
337/56/78 179/180/172 444/71/106 619/161/171
"""

KNOWN = {
    "Anthropic/hh-rlhf": tuple(tuple(map(int, row.split("/"))) for row in _HH.split()),
}
"""Data set of the Hub → tokens of prompt, chosen and rejected answer of some of its rows: of 500
helpful dialogues in Pythia's tokens, the shortest, the longest and those at equal steps between."""


def stand_in_rows(name: str | None, count: int, limit: int) -> list[EncodedExample]:
    """Rows of the lengths of a data set's, or, where these are not known, of the limit.

    **Arguments:** `limit`: longest row in tokens; a longer one loses the beginning of its prompt.
    """
    lengths = KNOWN.get(name or "", ((limit // 2, limit - limit // 2, limit - limit // 2),))
    rows = [_row(str(number), each, limit) for number, each in enumerate(lengths)]
    return [rows[number % len(rows)] for number in range(count)]


def _row(name: str, lengths: tuple[int, ...], limit: int) -> EncodedExample:
    prompt, chosen, rejected = lengths
    kept = max(1, min(prompt, limit - max(chosen, rejected)))
    first, second = (Encoded((0,) * (kept + answer), kept) for answer in (chosen, rejected))
    return EncodedExample(name, first, second)
