"""What each arm of a comparison is, in words."""

from __future__ import annotations

from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.objectives.spin import SPINConfig
from dynolab.report.inputs.groups import GroupPageInputs
from dynolab.report.page import Html, section, table, text
from dynolab.report.panels.arm_style import arm_style
from dynolab.report.style import DARK, join, objective_name

_GRPO, _NTHR = "Shao et al., arXiv 2402.03300", "Deng et al., arXiv 2505.18830"
_RULES = {
    "none": ("GRPO: every answer is pushed by how far its reward is above its group's mean", _GRPO),
    "nthr": (
        "GRPO that pushes less on those tokens of wrong answers that drag right ones down",
        _NTHR,
    ),
    "random_tokens": (
        "Control of NTHR: as many tokens of wrong answers, drawn at random, are pushed less",
        _NTHR,
    ),
    "positives_only": (
        "Control of NTHR: GRPO in which no answer is pushed down",
        _NTHR,
    ),
}
_SIMKO = (
    "GRPO in which the likeliest alternatives share what pushes a right answer's unsure tokens up, "
    "and the likeliest tokens of wrong answers are pushed down harder"
)


def arm_list(inputs: GroupPageInputs) -> Html:
    """Every arm's name in the figures, what it does, its source, and settings off the default."""
    rows = [
        (_name(arm, place), told, Html(f'<span class="num">{source}</span>'), _settings(objective))
        for place, (arm, objective) in enumerate(inputs.arms.items())
        for told, source in (_told(objective),)
    ]
    others = [arm for arm in inputs.arms if arm != inputs.baseline]
    return section(
        "compared",
        "What is compared",
        f"{join(others)} with {inputs.baseline}, which is the baseline."
        if others
        else f"{inputs.baseline} with the model that it starts from.",
        table(("arm", "what it is", "source", "settings"), rows),
        note="An answer counts as right by its reward. Settings: those that are not the default.",
    )


def _name(arm: str, place: int) -> Html:
    color, _ = arm_style(place)
    mark = f'<span style="color: light-dark({color}, {DARK[color]})">■</span>'
    return Html(f'<b class="num">{mark} {text(arm)}</b>')


def _told(objective: AnyConfig) -> tuple[str, str]:
    if isinstance(objective, SimKOConfig):
        told, source = _SIMKO, "arXiv 2510.14807"
        rule = objective.advantage_rule.name
        return (told, source) if rule == "none" else (f"{told}; with {rule}", f"{source}; {_NTHR}")
    if isinstance(objective, ClippedConfig):
        return _RULES[objective.advantage_rule.name]
    if isinstance(objective, SPINConfig):
        return "The data's answers preferred to the model's own", "Chen et al., arXiv 2401.01335"
    return f"{objective_name(objective.name)} on the best and the worst answer to a prompt", "–"


def _settings(objective: AnyConfig) -> str:
    changed = objective.model_dump(exclude_defaults=True, exclude={"name", "advantage_rule"})
    if isinstance(objective, ClippedConfig):
        changed |= objective.advantage_rule.model_dump(exclude_defaults=True, exclude={"name"})
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "–"
