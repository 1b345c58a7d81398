"""Colours, names of kinds, text of others made harmless, numbers as people read them."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from dynolab.data.rows import Split
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval

INK, MUTED, GRID, ZERO, PAPER = "#1d2733", "#5d6875", "#e4e8ec", "#aab3bd", "#ffffff"
CHOSEN, REJECTED, BEST = "#2468b2", "#cf4f2c", "#7d4bb5"
HISTORY, RESIDUAL = "#8a939e", "#d3b13c"
UP, FLAT, DOWN = "#0f7f74", "#f4f4f1", "#a35a12"
_SOFT_CHOSEN, _SOFT_REJECTED, _IRRELEVANT, _NOISE = "#7ea6cd", "#dfa48f", "#6b9f77", "#9aa0a8"

# The page swaps these colours where the reader's screen is dark; figures are made in light ones.
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
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace"


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
}


def style_of(kind: str) -> KindStyle:
    """The kind's style; a kind of the user's own is drawn grey under its own name."""
    return KINDS.get(kind) or KindStyle(plotly_text(kind, 24), "Other", _NOISE, "longdashdot")


OBJECTIVES = {
    "sft_extended": "Extended SFT",
    "robust_dpo": "Robust DPO",
    "slic": "SLiC",
    "hinge": "Hinge",
    "simpo": "SimPO",
    "simko": "SimKO",
}
TITLES = {
    "sft": "Supervised fine-tuning",
    "sft_extended": "Supervised fine-tuning on both answers",
    "hinge": "Hinge on DPO's margin",
}
SPLITS: dict[Split, str] = {"train": "training", "heldout": "held-out"}


def objective_name(stage: str) -> str:
    """How an objective is called in a sentence."""
    return OBJECTIVES.get(stage, stage.upper())


def stage_title(stage: str) -> str:
    """What a panel about a training is headed with, by its objective."""
    return TITLES.get(stage) or objective_name(stage)


def rank_of(kind: str) -> int:
    """Place in a legend: known kinds as listed above, then others."""
    return 1000 + (list(KINDS).index(kind) if kind in KINDS else len(KINDS))


def in_order(kinds: Iterable[str]) -> list[str]:
    """Known kinds as listed above, then others by name."""
    return sorted(kinds, key=lambda kind: (rank_of(kind), kind))


@dataclass(frozen=True)
class Plate:
    """A figure with what it says: `message` is computed from the data, `note` says how to read."""

    name: str
    title: str
    message: str
    note: str
    figure: go.Figure


def plotly_text(text: object, limit: int = 80) -> str:
    """Text for plotly, which understands some HTML: shown as it is, never obeyed."""
    plain = str(text)
    if len(plain) > limit:
        plain = plain[: limit - 1] + "…"
    return html.escape(plain, quote=False)


def token_text(token: str, limit: int = 12) -> str:
    """A token for an axis: spaces and line ends made visible (byte-level BPE's own marks too)."""
    for plain, shown in (("Ġ", "·"), ("▁", "·"), ("Ċ", "⏎"), (" ", "·"), ("\n", "⏎"), ("\t", "⇥")):
        token = token.replace(plain, shown)
    return plotly_text("".join(c if c.isprintable() else "�" for c in token), limit)


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """`digits` significant digits with a true minus; `–` where nothing was measured.

    With `sign` a change: a plus stands before gains, and trailing zeros stay.
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:{'+#' if sign else ''}.{digits}g}"
    if 10**digits <= abs(value) < 1e6:
        text = f"{value:{'+' if sign else ''}.0f}"
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa.replace("-", "−")
    if not exponent:
        return mantissa
    superscript = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{mantissa}·10{superscript}"


def mean_and_ends(interval: Interval, sign: bool = True) -> tuple[str, str, str]:
    """Mean, low and high end to the place that the interval's width warrants."""
    if 0 < max(abs(interval.mean), abs(interval.low), abs(interval.high)) < 1e-3:
        tiny = (number(x, 2, sign) for x in (interval.mean, interval.low, interval.high))
        mean, low, high = tiny
        return mean, low, high
    width = interval.high - interval.low
    rounding = 1e-9 * abs(interval.mean)
    scale = width if math.isfinite(width) and width > rounding else abs(interval.mean) or 1.0
    places = min(6, max(1, 1 - math.floor(math.log10(scale)))) if math.isfinite(scale) else 1
    mean, low, high = (
        f"{x:{'+' if sign else ''}.{places}f}".replace("-", "−") if math.isfinite(x) else "–"
        for x in (interval.mean, interval.low, interval.high)
    )
    return mean, low, high


def with_interval(interval: Interval, sign: bool = True) -> str:
    """`mean [low, high]`."""
    mean, low, high = mean_and_ends(interval, sign)
    return f"{mean} [{low}, {high}]" if interval.n else "–"


def points(share: Interval, sign: bool = True) -> str:
    """`mean [low, high]` of a share in parts of a hundred."""
    return with_interval(
        Interval(100 * share.mean, 100 * share.low, 100 * share.high, share.n), sign
    )


def join(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def columns(count: int, space: float) -> list[tuple[float, float]]:
    """Where `count` panels side by side begin and end, with `space` between, of a width of one."""
    width = (1 - space * (count - 1)) / count
    # Rounding must not push the last one beyond the figure.
    return [(i * (width + space), min(1.0, i * (width + space) + width)) for i in range(count)]


def axis_key(letter: str, index: int) -> str:
    """The layout's name of the index-th axis: xaxis, xaxis2, xaxis3."""
    return f"{letter}axis" if index == 1 else f"{letter}axis{index}"


def axis_name(letter: str, index: int) -> str:
    """Plotly's name of the index-th axis: x, x2, x3."""
    return letter if index == 1 else f"{letter}{index}"


def base_layout(height: int, **more: Any) -> dict[str, Any]:
    """What all figures share."""
    return {
        "template": TEMPLATE,
        "height": height,
        "margin": {"l": 64, "r": 24, "t": 48, "b": 52},
        "uirevision": "keep",
        **more,
    }


def _axis() -> dict[str, Any]:
    return {
        "gridcolor": GRID,
        "zerolinecolor": ZERO,
        "zerolinewidth": 1.2,
        "linecolor": ZERO,
        "ticks": "outside",
        "tickcolor": ZERO,
        "ticklen": 4,
        "tickfont": {"color": MUTED, "size": 12},
        "title": {"font": {"color": MUTED, "size": 13}, "standoff": 8},
        "automargin": True,
    }


TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": ZERO,
            "align": "left",
            "font": {"family": FONT, "color": INK, "size": 13},
        },
        "hovermode": "closest",
        "legend": {
            "font": {"size": 12},
            "grouptitlefont": {"size": 11, "color": MUTED},
            "tracegroupgap": 0,
            "itemclick": "toggle",
            "itemdoubleclick": "toggleothers",
        },
        "xaxis": _axis(),
        "yaxis": _axis(),
        "autotypenumbers": "strict",
    }
)


def panel_title(text: str, x: float, y: float, **more: Any) -> dict[str, Any]:
    """A bold heading over a panel, at paper coordinates."""
    return {
        "text": f"<b>{text}</b>",
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 14},
        **more,
    }


def buttons(labels_and_args: list[tuple[str, list[Any]]], y: float) -> dict[str, Any]:
    """A row of buttons at the figure's upper right; the first is what is shown at first."""
    return {
        "type": "buttons",
        "direction": "right",
        "x": 1.0,
        "xanchor": "right",
        "y": y,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 0},
        "showactive": True,
        "bgcolor": PAPER,
        "bordercolor": ZERO,
        "font": {"size": 12, "color": MUTED},
        "buttons": [
            {"label": label, "method": "update", "args": args} for label, args in labels_and_args
        ],
    }
