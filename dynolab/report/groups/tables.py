"""The tables of a comparison of trainings on groups: what each arm is, and all its figures."""

from __future__ import annotations

from markupsafe import Markup

from dynolab.comparisons.arm_table import (
    FROM_RIGHT,
    FROM_WRONG,
    HARM_FOUND,
    HARMFUL,
    LAZY_CHANGE,
    LAZY_SHARE,
    PRECISION,
    RECALL,
    SQUEEZE_INDEX,
    START,
    ArmTable,
    pass_names,
    splits_of,
)
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.objectives.spin import SPINConfig
from dynolab.report.inputs.arms import GroupPageInputs
from dynolab.report.page import Section, section, table
from dynolab.report.style import DARK, SPLITS, arm_style, objective_name
from dynolab.report.text import join, points, with_interval

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
_OF_SPLIT = {
    "distinct": "different answers, %",
    "entropy": "entropy, nats",
    "tokens": "length, tokens",
    "repeaters": "answers that repeat themselves, %",
    "right_change": "Δ log π of right answers, nats",
    "right_fallen": "prompts where these fell, %",
    "chosen": "Δ log π of chosen answers, nats",
    "rejected": "Δ log π of rejected answers, nats",
    "argmax": "Δ log π of y*, nats",
    "gap": "Δ gap y* − chosen, nats",
}


_SIGNED = ("change", "chosen", "rejected", "argmax", "gap", FROM_RIGHT, FROM_WRONG)
_NOT_SHARES = (*_SIGNED, "entropy", "tokens")


def arm_list(inputs: GroupPageInputs) -> Section:
    """Every arm's name in the figures, what it does, its source, and its non-default settings."""
    source = Markup('<span class="num">{}</span>')
    rows = [
        (_name(arm, place), what, source.format(paper), _settings(objective))
        for place, (arm, objective) in enumerate(inputs.arms.items())
        for what, paper in (_what(objective),)
    ]
    others = [arm for arm in inputs.arms if arm != inputs.baseline]
    against = (
        f"{join(others)} against {inputs.baseline}, the baseline."
        if others
        else f"{inputs.baseline} against the model that it starts from."
    )
    return section(
        "compared",
        "What is compared",
        "",
        table(("arm", "what it is", "source", "settings"), rows),
        note=f"{against} An answer counts as right by its reward. Settings: those that differ "
        "from the default.",
    )


def _name(arm: str, place: int) -> Markup:
    color, _ = arm_style(place)
    return Markup('<b class="num"><span style="color: light-dark({}, {})">■</span> {}</b>').format(
        color, DARK[color], arm
    )


def _what(objective: AnyConfig) -> tuple[str, str]:
    """What an objective does, and where it is from."""
    if isinstance(objective, SimKOConfig):
        rule, source = objective.advantage_rule.name, "arXiv 2510.14807"
        return (
            (_SIMKO, source) if rule == "none" else (f"{_SIMKO}; with {rule}", f"{source}; {_NTHR}")
        )
    if isinstance(objective, ClippedConfig):
        what, source = _RULES[objective.advantage_rule.name]
        entropy = isinstance(objective, GRPOConfig) and objective.entropy
        return (f"{what}; the entropy of every token is raised" if entropy else what), source
    if isinstance(objective, SPINConfig):
        return "The data's answers preferred to the model's own", "Chen et al., arXiv 2401.01335"
    return f"{objective_name(objective.name)} on the best and the worst answer to a prompt", "–"


def _settings(objective: AnyConfig) -> str:
    changed = objective.model_dump(exclude_defaults=True, exclude={"name", "advantage_rule"})
    if isinstance(objective, ClippedConfig):
        changed |= objective.advantage_rule.model_dump(exclude_defaults=True, exclude={"name"})
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "–"


def arm_table(inputs: GroupPageInputs, figures: ArmTable) -> Section:
    """Every arm's figures with intervals over seeds, and under each the difference from
    the baseline's, paired by seed."""
    arms = (START, *inputs.arms)
    tables = [
        table(
            (title, *arms),
            [
                (caption, *(_cell(inputs, figures, arm, name) for arm in arms))
                for name, caption in rows
            ],
            "s" + "n" * len(arms),
        )
        for title, rows in _titles(figures).items()
        if rows
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(inputs.arms)} arms with {len(inputs.seeds)} seeds; small: the difference from "
        f"{inputs.baseline}, paired by seed.",
        *tables,
        note=f"Means over prompts, then over seeds [95% t-interval over {inputs.unit}]. Entropy "
        "and Δ log π are of whole answers.",
    )


def _titles(figures: ArmTable) -> dict[str, list[tuple[str, str]]]:
    """The figures in the order of the page, by table, each with its caption."""
    tables = {}
    for split in splits_of(figures.names):
        names = pass_names(figures.names, split)
        chosen = dict.fromkeys((names[0], names[len(names) // 2], names[-1]))
        rows = [(name, f"pass@{name.rpartition('_')[2]}, %") for name in chosen]
        rows += [(f"{split}/{name}", title) for name, title in _OF_SPLIT.items()]
        tables[f"{SPLITS[split]} prompts"] = rows
    tables["one update"] = [
        (LAZY_SHARE, "questions displaced, %"),
        (LAZY_CHANGE, "Δ log π of right answers, nats"),
        (FROM_RIGHT, "push on them from right answers, nats/η"),
        (FROM_WRONG, "push on them from wrong answers, nats/η"),
        (HARMFUL, "tokens of wrong answers that do harm, %"),
        (PRECISION, "of the tokens that the rule chose, %"),
        (RECALL, "harmful tokens that it chose, %"),
        (HARM_FOUND, "their part of the harm, %"),
    ]
    tables["whole training"] = [(SQUEEZE_INDEX, "squeezing index, %")]
    return {
        title: [(name, caption) for name, caption in rows if name in figures.names]
        for title, rows in tables.items()
    }


def _cell(inputs: GroupPageInputs, figures: ArmTable, arm: str, name: str) -> str:
    form = with_interval if name.endswith(_NOT_SHARES) else points
    mean = form(figures.mean(arm, name), sign=name.endswith(_SIGNED))
    difference = figures.difference(arm, inputs.baseline, name)
    if arm == inputs.baseline or not difference.n:
        return mean
    return Markup('{}<br><small class="quiet">{}</small>').format(mean, form(difference))
