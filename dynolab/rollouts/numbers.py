"""Parses the final number of an answer to a word problem, exactly."""

from __future__ import annotations

import re
from decimal import Decimal

FINAL = "####"
"""Precedes the final answer of a GSM8K solution (Cobbe et al., arXiv 2110.14168)."""

# A minus is a sign only if no word, dot or closing bracket precedes it: "10-5" ends in 5.
# A comma is a thousands separator only before three digits: "3,4" is two numbers, "3,400" one.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w).])(?:[-−]\$?|\$[-−]))?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)


def final_number(text: str) -> Decimal | None:
    """The final number of a solution; None if it has none.

    It is the first number after the first `####`, so that text after the answer is ignored;
    without that mark it is the last number of the text. Ignores currency signs, units, thousands
    separators and trailing zeros.
    """
    _, mark, answer = text.partition(FINAL)
    numbers = list(_NUMBER.finditer(answer if mark else text))
    return _value(numbers[0 if mark else -1]) if numbers else None


def _value(match: re.Match[str]) -> Decimal:
    size = Decimal(match["digits"].replace(",", ""))
    return -size if match["sign"] else size
