"""Numbers in answers to word problems, read exactly."""

from __future__ import annotations

import re
from decimal import Decimal

FINAL = "####"
"""Stands before the final answer of a GSM8K solution (Cobbe et al., arXiv 2110.14168)."""

# A minus is a sign only where no word or closing bracket stands before it: "10-5" ends in 5.
# A comma groups digits only in threes: "3,4" are two numbers, "3,400" is one.
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w).])(?:[-−]\$?|\$[-−]))?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d+)(?:\.\d+)?|(?<!\d)\.\d+)",
    re.ASCII,
)


def final_number(text: str) -> Decimal | None:
    """The number that a solution ends with; None where it has none.

    It is the first one behind the first `####`, so that nothing written after the answer counts;
    without that mark it is the last one of the text. Signs of currency, units, thousands
    separators and trailing zeros do not matter.
    """
    _, mark, answer = text.partition(FINAL)
    numbers = list(_NUMBER.finditer(answer if mark else text))
    return _value(numbers[0 if mark else -1]) if numbers else None


def _value(match: re.Match[str]) -> Decimal:
    size = Decimal(match["digits"].replace(",", ""))
    return -size if match["sign"] else size
