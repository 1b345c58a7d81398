"""Colours, and the styles and names of kinds of answers, objectives, splits and arms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dynolab.data.rows import Split
from dynolab.data.world.answer_kinds import AnswerKind
from dynolab.report.text import plotly_text
from dynolab.results.study import ARGMAX

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
    """The kind's style; a kind that is not listed above is drawn grey under its own name."""
    return KINDS.get(kind) or KindStyle(plotly_text(kind, 24), "Other", _NOISE, "longdashdot")


OBJECTIVES = {
    "sft_extended": "Extended SFT",
    "robust_dpo": "Robust DPO",
    "slic": "SLiC",
    "hinge": "Hinge",
    "simpo": "SimPO",
    "simko": "SimKO",
}
_ACRONYMS = ("sft", "dpo", "ipo", "sppo", "spin", "cpo", "orpo", "grpo", "nthr")
TITLES = {
    "sft": "Supervised fine-tuning",
    "sft_extended": "Supervised fine-tuning on both answers",
    "hinge": "Hinge on DPO's margin",
}
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


def objective_name(stage: str) -> str:
    """An objective's name in a sentence; an arm's own name stays as it is."""
    return OBJECTIVES.get(stage) or (stage.upper() if stage in _ACRONYMS else stage)


def stage_title(stage: str) -> str:
    """The heading of a training's panel, by its objective."""
    return TITLES.get(stage) or objective_name(stage)


def rank_of(kind: str) -> int:
    """Place in a legend: known kinds as listed above, then others."""
    return 1000 + (list(KINDS).index(kind) if kind in KINDS else len(KINDS))


def in_order(kinds: Iterable[str]) -> list[str]:
    """Known kinds as listed above, then others by name."""
    return sorted(kinds, key=lambda kind: (rank_of(kind), kind))
