"""How pages look: numbers, texts, colours, and names of kinds, objectives, splits and arms.

Untrusted text is escaped for plotly, which renders some HTML.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import AnswerKind
from dynolab.objectives.registry import REGISTERED
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval


def excerpt(value: str, limit: int = 160, *, end: bool = False) -> str:
    """Shortens a text to fit a table: keeps its start, or with `end` its end, in whole words.

    A word that is longer than a quarter of the limit is cut.
    """
    words = " ".join(value.split())
    if len(words) <= limit:
        return words
    if end:
        _, space, words_left = words[-limit - 1 :].partition(" ")
        return f"[…] {words_left if space and 4 * len(words_left) > 3 * limit else words[-limit:]}"
    words_left, space, _ = words[: limit + 1].rpartition(" ")
    return f"{words_left if space and 4 * len(words_left) > 3 * limit else words[:limit]} […]"


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


def numbers(*values: float | None, digits: int = 3, sign: bool = False) -> list[str]:
    """Formats several numbers as `number` does."""
    return [number(value, digits, sign) for value in values]


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


def percent(share: float) -> str:
    """A share with its sign of percent."""
    return f"{number(100 * share, 2)} %"


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


INK, MUTED, GRID, ZERO, PAPER = "#1d2733", "#5d6875", "#e4e8ec", "#aab3bd", "#ffffff"
CHOSEN, REJECTED, BEST = "#2468b2", "#cf4f2c", "#7d4bb5"
HISTORY, RESIDUAL = "#8a939e", "#d3b13c"
UP, FLAT, DOWN = "#0f7f74", "#f4f4f1", "#a35a12"
_SOFT_CHOSEN, _SOFT_REJECTED, _IRRELEVANT, _NOISE = "#7ea6cd", "#dfa48f", "#6b9f77", "#9aa0a8"

# Figures are made in the light colours; on a dark screen the page swaps them for these.
DARK: dict[str, str] = {
    INK: "#e8ecf1",
    MUTED: "#a3adb8",
    GRID: "#2b333d",
    ZERO: "#5a6571",
    PAPER: "#171c22",
    CHOSEN: "#5ea3ec",
    REJECTED: "#f07f5c",
    BEST: "#b58ae8",
    HISTORY: "#8f99a5",
    RESIDUAL: "#e0c257",
    UP: "#2fb5a6",
    FLAT: "#232a32",
    DOWN: "#d98a3c",
    _SOFT_CHOSEN: "#6f9fce",
    _SOFT_REJECTED: "#c98d78",
    _IRRELEVANT: "#74b389",
    _NOISE: "#8b95a1",
}

DIVERGING = [[0.0, DOWN], [0.5, FLAT], [1.0, UP]]
SEQUENTIAL = [[0.0, FLAT], [1.0, CHOSEN]]
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"

_ARM_COLORS = (CHOSEN, UP, BEST, RESIDUAL, REJECTED, DOWN, HISTORY)
_ARM_DASHES = ("solid", "dash", "dot", "dashdot")


def arm_style(place: int) -> tuple[str, str]:
    """Colour and dash of the arm at index `place`; dashes change when colours are used up."""
    dash = _ARM_DASHES[place // len(_ARM_COLORS) % len(_ARM_DASHES)]
    return _ARM_COLORS[place % len(_ARM_COLORS)], dash


@dataclass(frozen=True)
class KindStyle:
    """How a kind of answer looks."""

    label: str
    group: str
    color: str
    dash: str = "solid"
    prominent: bool = False


_ANSWERS, _REPHRASED = "The pair and y*", "Like the chosen"
_REPHRASED_BAD, _OTHERS, _NOT_LANGUAGE = "Like the rejected", "Unrelated", "Shuffled"
_MEASURED = "Measured at answers"
KINDS: dict[str, KindStyle] = {
    "chosen": KindStyle("chosen y⁺", _ANSWERS, CHOSEN, prominent=True),
    "rejected": KindStyle("rejected y⁻", _ANSWERS, REJECTED, prominent=True),
    ARGMAX: KindStyle("y* (argmax)", _ANSWERS, BEST, prominent=True),
    "chosen_initial": KindStyle("chosen_initial", _REPHRASED, _SOFT_CHOSEN, "longdash"),
    "chosen_selfr": KindStyle("chosen_selfr", _REPHRASED, _SOFT_CHOSEN, "dashdot"),
    "chosen_gptsemantic": KindStyle("chosen_gptsemantic", _REPHRASED, _SOFT_CHOSEN, "dash"),
    "chosen_gptformat": KindStyle("chosen_gptformat", _REPHRASED, _SOFT_CHOSEN, "dot"),
    "reject_gptsemantic": KindStyle("reject_gptsemantic", _REPHRASED_BAD, _SOFT_REJECTED, "dash"),
    "reject_gptformat": KindStyle("reject_gptformat", _REPHRASED_BAD, _SOFT_REJECTED, "dot"),
    "irr_train": KindStyle("irr_train", _OTHERS, _IRRELEVANT),
    "irr_test": KindStyle("irr_test", _OTHERS, _IRRELEVANT, "dash"),
    "irr_hum": KindStyle("irr_hum", _OTHERS, _IRRELEVANT, "dot"),
    "random_permute": KindStyle("random_permute", _NOT_LANGUAGE, _NOISE),
    "random_nonhum": KindStyle("random_nonhum", _NOT_LANGUAGE, _NOISE, "dot"),
    "entropy": KindStyle("entropy", _MEASURED, HISTORY),
    "kl": KindStyle("KL to the reference", _MEASURED, HISTORY, "dash"),
    "margin": KindStyle("margin y⁺ − y⁻", _MEASURED, UP),
    "contrast": KindStyle("unwanted − wanted", _MEASURED, REJECTED),
    "reward": KindStyle("reward, by log π", _MEASURED, UP, "dash"),
}


def style_of(kind: str) -> KindStyle:
    """The kind's style; a kind that is not listed above is drawn grey under its own name."""
    return KINDS.get(kind) or KindStyle(plotly_text(kind, 24), "Other", _NOISE, "longdashdot")


ANSWER_KINDS: dict[AnswerKind, tuple[str, str]] = {
    "right": ("right", UP),
    "rejected_style": ("right, rejected style", _SOFT_CHOSEN),
    "other_form": ("right, other form", _IRRELEVANT),
    "anothers_value": ("another entity’s value", REJECTED),
    "nobodys_value": ("nobody’s value", BEST),
    "other_attribute": ("another attribute", DOWN),
    "other_entity": ("about another entity", _SOFT_REJECTED),
    "broken": ("broken", HISTORY),
}
"""Label and colour of what answers say, from right to broken."""

SPLITS: dict[Split, str] = {"train": "training", "heldout": "held-out"}


def objective_name(objective: str) -> str:
    """An objective's name in a sentence; an arm's name that is no objective's stays as it is."""
    if objective in REGISTERED:
        return REGISTERED[objective].page_name
    return "NTHR" if objective == "nthr" else objective


def stage_title(objective: str) -> str:
    """The heading of a training's panel, by its objective."""
    if objective in REGISTERED:
        return REGISTERED[objective].heading
    return objective_name(objective)


def rank_of(kind: str) -> int:
    """Place in a legend: known kinds as listed above, then others."""
    return 1000 + (list(KINDS).index(kind) if kind in KINDS else len(KINDS))


def in_order(kinds: Iterable[str]) -> list[str]:
    """Known kinds as listed above, then others by name."""
    return sorted(kinds, key=lambda kind: (rank_of(kind), kind))
