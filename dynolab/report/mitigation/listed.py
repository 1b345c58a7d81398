"""What each arm is: its remedy, who proposed it, its settings, and the pairs that it left out."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dynolab.objectives.dpo import DPOConfig
from dynolab.report.page import Section, section, table
from dynolab.report.style import objective_name
from dynolab.report.text import join, number
from dynolab.results.arms import ArmFacts, ComparedArms, RunFigures

_PAPER = "Ren & Sutherland, arXiv 2407.10490"
_SOURCES = {
    "dpo": "Rafailov et al., arXiv 2305.18290",
    "ipo": "Azar et al., arXiv 2310.12036",
    "simpo": "Meng et al., arXiv 2405.14734",
    "robust_dpo": "Chowdhury et al., arXiv 2403.00409",
    "slic": "Zhao et al., arXiv 2305.10425",
    "hinge": "Liu et al., arXiv 2309.06657",
    "sppo": "Wu et al., arXiv 2405.00675",
}
_STARTS: dict[str, str] = {
    "extended": "after SFT on both answers of every pair, in twice the steps: each weighs as the "
    "chosen one does in plain SFT",
    "extended_half": "after SFT on both answers of every pair, in as many steps: each has half the "
    "weight",
    "base": "from the base model, without SFT",
}
_PAIRS = {
    "resampled": (
        "rejected answers sampled once from the model that it starts from, chosen ones the data's",
        _PAPER,
    ),
    "on_policy": (
        "on-policy: both answers sampled from the policy in training and ranked",
        "Guo et al., arXiv 2402.04792",
    ),
}
RANKINGS = {"ches": "CHES", "ches_per_token": "CHES per token"}
"""Rankings of pairs that are not columns of an audit."""

_SHOWN_PAIRS = 20


def mitigation_list(compared: ComparedArms) -> Section:
    """What every arm is, its source, and its non-default settings."""
    bold = Markup("<b>{}</b>")
    rows = []
    for label, arm in compared.arms.items():
        what, source = _what(arm)
        rows.append(
            (bold.format(label), what + _left_out(compared.runs[label]), source, _settings(arm))
        )
    return section(
        "compared",
        "What is compared",
        f"{join(compared.others)} against {compared.baseline}, the baseline."
        if compared.others
        else f"{compared.baseline} alone.",
        table(("arm", "what it is", "source", "settings"), rows),
        note=f"{compared.training} Settings: those that differ from the default."
        + _why_they_differ(compared),
    )


def _why_they_differ(compared: ComparedArms) -> str:
    """Why an audit and an account leave out different pairs, where there are arms of both."""
    audited, named = (
        [label for label, arm in compared.arms.items() if arm.filtered_by == by]
        for by in ("on_all", "id")
    )
    if not audited or not named:
        return ""
    return (
        f" {join(audited)} and {join(named)} leave out different pairs: on_all ranks a pair by "
        "what one gradient step on it, before the training, does to the chosen answers of all "
        "training pairs on average; a study with an account names the pairs that lowered its "
        "fallen answers, training and held-out, most over the steps of its training."
    )


def _left_out(runs: Sequence[RunFigures]) -> str:
    """How many pairs an arm's filter left out, and those that it left out with every seed."""
    counts = sorted({len(run.left_out) for run in runs if run.left_out})
    if not counts:
        return ""
    always = [pair for pair in runs[0].left_out if all(pair in run.left_out for run in runs[1:])]
    more = len(always) - _SHOWN_PAIRS
    shown = join([*always[:_SHOWN_PAIRS], *([f"{more} more"] if more > 0 else [])])
    seeds = "" if len(runs) == 1 else "the same with every seed: "
    return f" ({'–'.join(map(str, counts))} pairs; {seeds}{shown or 'none'})"


def _what(arm: ArmFacts) -> tuple[str, str]:
    """What an arm does, and who proposed it."""
    name = objective_name(arm.objective.name)
    parts, source = [], _SOURCES.get(arm.objective.name, "–")
    if arm.start in _STARTS:
        parts.append(_STARTS[arm.start])
        source = _PAPER
    if arm.pairs in _PAIRS:
        pairs, proposed_by = _PAIRS[arm.pairs]
        parts.append(pairs)
        # SPPO itself is on-policy.
        source = source if arm.objective.name == "sppo" else proposed_by
    if arm.filtered_by == "id":
        parts.append("without the pairs that are named")
        source = "–"
    elif arm.filtered_by is not None:
        by = RANKINGS.get(arm.filtered_by)
        ranking = f"by {by}" if by else f"by the audit ({arm.filtered_by})"
        parts.append(f"without the {arm.dropped:.0%} of the pairs that rank worst {ranking}")
        source = "Razin et al., arXiv 2410.08847" if by else "–"
    if arm.alarm is not None:
        done = "ended" if arm.alarm.stop else "watched"
        bounds = {
            "the gap has grown by": arm.alarm.rise,
            "the gap is": arm.alarm.gap,
            "the margin has grown by": arm.alarm.margin,
        }
        known = [f"{how} {number(nats)} nats" for how, nats in bounds.items() if nats is not None]
        parts.append(f"{done} when {' or '.join(known)}")
        source = "–"
    if isinstance(arm.objective, DPOConfig) and arm.objective.negative_dose != 1:
        parts.append(f"push on rejected tokens × {number(arm.objective.negative_dose)}")
        source = "–"
    dose = getattr(arm.objective, "designed_dose", None)
    if dose is not None:
        parts.append(
            f"each step the largest push on rejected tokens, by {dose.per}, that to first order "
            f"does not lower {dose.sample} other chosen answers"
        )
        source = "–"
    if arm.warmup_steps:
        parts.append("smaller first steps: a learning rate that warms up")
        source = "–"
    return ", ".join([name, *parts]), source


def _settings(arm: ArmFacts) -> str:
    """An arm's settings that are not the default."""
    changed = arm.objective.model_dump(
        exclude_defaults=True, exclude={"name", "negative_dose", "designed_dose"}
    )
    if arm.learning_rate is not None:
        changed["learning rate"] = f"{arm.learning_rate:g}"
    if arm.warmup_steps is not None:
        changed["warm-up steps"] = arm.warmup_steps
    if arm.updates_per_rollout is not None:
        changed["steps between samplings"] = arm.updates_per_rollout
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "–"
