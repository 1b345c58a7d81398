"""Strict parser for a judge's replies."""

from __future__ import annotations

import json
import re
from typing import Literal

Place = Literal["A", "B", "TIE"]
"""Which of the answers is better, by the order shown."""

_PLACES: dict[str, Place] = {"A": "A", "B": "B", "TIE": "TIE"}

_REFUSAL = re.compile(
    r"(i['’]?m sorry|i am sorry|sorry\b|i apologi[sz]e|i can(['’]t|not)\b|i won['’]t\b"
    r"|i will not\b|i['’]?m (not able|unable)\b|i am (not able|unable)\b|i (must )?decline\b"
    r"|as an ai\b)",
    re.IGNORECASE,
)


def parse_verdict(text: str) -> Place | None:
    """Parses a reply that is `A`, `B` or `TIE`, or `{"verdict": …}` with one of these.

    Returns None for every other reply: surrounding words, other or duplicate fields, other letters.
    A verdict found by searching could have been planted by an answer.
    """
    reply = text.strip()
    if reply in _PLACES:
        return _PLACES[reply]
    try:
        parsed = json.loads(reply, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return None
    match parsed:
        case [("verdict", str(place))] if reply.startswith("{"):
            return _PLACES.get(place)
    return None


def refuses(text: str) -> bool:
    """Whether a reply without a verdict begins like a refusal."""
    return _REFUSAL.match(text.lstrip(" \n\"'“*")) is not None
