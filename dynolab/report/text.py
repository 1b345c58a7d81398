"""Formats numbers, tokens and lists for people; escapes untrusted text for plotly."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from dynolab.statistics import Interval


def excerpt(value: str, limit: int = 160, *, end: bool = False) -> str:
    """Shortens a text to fit a table: keeps its start, or with `end` its end, in whole words.

    A word that is longer than a quarter of the limit is cut.
    """
    words = " ".join(value.split())
    if len(words) <= limit:
        return words
    if end:
        _, space, whole = words[-limit - 1 :].partition(" ")
        return f"[…] {whole if space and 4 * len(whole) > 3 * limit else words[-limit:]}"
    whole, space, _ = words[: limit + 1].rpartition(" ")
    return f"{whole if space and 4 * len(whole) > 3 * limit else words[:limit]} […]"


def plotly_text(text: object, limit: int = 80) -> str:
    """Escapes text for plotly, which renders some HTML, and cuts it to `limit` characters."""
    plain = str(text)
    if len(plain) > limit:
        plain = plain[: limit - 1] + "…"
    return html.escape(plain, quote=False)


def token_text(token: str, limit: int = 12) -> str:
    """A token as an axis label, as `visible_token` shows it, escaped for plotly."""
    return plotly_text(visible_token(token), limit)


def visible_token(token: str) -> str:
    """A token with its spaces and line ends visible (byte-level BPE's marks too)."""
    for plain, shown in (("Ġ", "·"), ("▁", "·"), ("Ċ", "⏎"), (" ", "·"), ("\n", "⏎"), ("\t", "⇥")):
        token = token.replace(plain, shown)
    return "".join(c if c.isprintable() else "�" for c in token)


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Formats `digits` significant digits with a true minus; `–` if nothing was measured.

    With `sign`: puts a plus before positive numbers and keeps trailing zeros.
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:{'+#' if sign else ''}.{digits}g}"
    if 10**digits - 0.5 <= abs(value) < 1e6:
        text = f"{value:{'+' if sign else ''}.0f}"
    mantissa, _, exponent = text.partition("e")
    mantissa = true_minus(mantissa).removesuffix(".")
    if not exponent:
        return mantissa
    superscript = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{superscript}"


def true_minus(text: str) -> str:
    """Replaces the hyphen in a formatted number by a minus sign."""
    return text.replace("-", "−")


def mean_and_ends(interval: Interval, sign: bool = True) -> tuple[str, str]:
    """Formats `mean` and `[low, high]`, rounded to the place that the interval's width warrants.

    One value has no interval: its ends are empty. Equal values have one of no width, which says
    less than their number.
    """
    ends = interval.mean, interval.low, interval.high
    if 0 < max(map(abs, ends)) < 1e-3:
        mean, low, high = (number(end, 2, sign) for end in ends)
        return mean, f"[{low}, {high}]"
    width = interval.high - interval.low
    rounding = 1e-9 * abs(interval.mean)
    scale = width if math.isfinite(width) and width > rounding else abs(interval.mean) or 1.0
    places = min(6, max(1, 1 - math.floor(math.log10(scale)))) if math.isfinite(scale) else 1
    mean, low, high = (
        true_minus(f"{end:{'+' if sign else ''}.{places}f}") if math.isfinite(end) else "–"
        for end in ends
    )
    if width <= rounding:
        return mean, f"[all {interval.n} equal]"
    return mean, f"[{low}, {high}]" if (low, high) != ("–", "–") else ""


def with_interval(interval: Interval, sign: bool = True) -> str:
    """`mean [low, high]`; one value has no interval."""
    return " ".join(filter(None, mean_and_ends(interval, sign))) if interval.n else "–"


def points(share: Interval, sign: bool = True) -> str:
    """`mean [low, high]` of a share, in percentage points."""
    return with_interval(share.times(100), sign)


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: str) -> str:
    """Aligned columns for a terminal; `numeric` holds an `n` for each column set to the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if kind == "n" else cell.ljust(width)
            for cell, width, kind in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )
