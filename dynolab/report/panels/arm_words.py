"""What an arm of compared preference trainings is, in words."""

from __future__ import annotations

from dynolab.objectives.dpo import DPOConfig
from dynolab.report.style import number, objective_name
from dynolab.results.arms import ArmFacts

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
_RANKINGS = {"ches": "CHES", "ches_per_token": "CHES per token"}


def told(arm: ArmFacts) -> tuple[str, str]:
    """What an arm does, and who proposed it."""
    name = objective_name(arm.objective.name)
    parts, source = [], _SOURCES.get(arm.objective.name, "–")
    if arm.start in _STARTS:
        parts.append(_STARTS[arm.start])
        source = _PAPER
    if arm.pairs in _PAIRS:
        pairs, proposed_by = _PAIRS[arm.pairs]
        parts.append(pairs)
        source = source if arm.objective.name == "sppo" else proposed_by  # on-policy by itself
    if arm.filtered_by is not None:
        by = _RANKINGS.get(arm.filtered_by)
        ranking = f"by {by}" if by else f"by the audit ({arm.filtered_by})"
        parts.append(f"without the {arm.dropped:.0%} of the pairs that rank worst {ranking}")
        source = "Razin et al., arXiv 2410.08847" if by else "–"
    if arm.alarm is not None:
        done = "ended" if arm.alarm.stop else "watched"
        bounds = {"has grown by": arm.alarm.rise, "is": arm.alarm.gap}
        said = [f"{how} {number(nats)} nats" for how, nats in bounds.items() if nats is not None]
        parts.append(f"{done} where the gap {' or '.join(said)}")
        source = "–"
    if isinstance(arm.objective, DPOConfig) and arm.objective.negative_dose != 1:
        parts.append(f"push on rejected tokens × {number(arm.objective.negative_dose)}")
        source = "–"
    return ", ".join([name, *parts]), source


def settings(arm: ArmFacts) -> str:
    """An arm's settings that are not the default."""
    changed = arm.objective.model_dump(exclude_defaults=True, exclude={"name", "negative_dose"})
    if arm.learning_rate is not None:
        changed["learning rate"] = f"{arm.learning_rate:g}"
    if arm.updates_per_rollout is not None:
        changed["steps between samplings"] = arm.updates_per_rollout
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "–"
