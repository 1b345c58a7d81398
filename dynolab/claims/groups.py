"""Claims about trainings on sampled groups, and their verdicts.

Figures are means over seeds with t-intervals; comparisons of two arms, or of before and after, are
paired by seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dynolab.claims.verdict import Sign, Verdict, on_side
from dynolab.comparisons.arm_table import (
    HARMFUL,
    LAZY_CHANGE,
    LAZY_SHARE,
    PRECISION,
    START,
    ArmTable,
    pass_names,
)
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.grpo import GRPOConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.statistics import mean_interval

Objectives = Mapping[str, AnyConfig]


def assess_arms(objectives: Objectives, baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """Judges all claims about the arms present.

    Baseline: it raises pass@1 and lowers pass@k (arXiv 2510.14807), and right answers do not
    become likelier (Deng et al., arXiv 2505.18830); its answers lose entropy. NTHR: one update
    displaces fewer questions than one of the baseline or of the random-token control, and lifts
    right answers more; of the tokens that it chooses more do harm than of all. SimKO, an entropy
    bonus, and training on right answers alone: pass@k is above the baseline's.
    """
    verdicts = [*_baseline_verdicts(baseline, table)]
    random = _arms_with_rule(objectives, "random_tokens")
    for arm in _arms_with_rule(objectives, "nthr"):
        for other in (baseline, *random):
            verdicts += _update_verdicts(arm, other, table)
        if table.mean(arm, PRECISION).n:
            verdicts.append(_choice_verdict(arm, table))
    for arm, objective in objectives.items():
        if arm != baseline and _keeps_answers(objective):
            verdicts += _pass_verdicts(arm, baseline, table)
    return tuple(verdicts)


def _keeps_answers(objective: AnyConfig) -> bool:
    """Whether an objective is said to keep what several answers find."""
    if isinstance(objective, GRPOConfig):
        return bool(objective.entropy) or objective.advantage_rule.name == "positives_only"
    return isinstance(objective, SimKOConfig)


def _baseline_verdicts(arm: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts, names in _pass_figures(table):
        moves: tuple[tuple[str, str, Sign], ...] = (
            (names[0], "rises", 1),
            (names[-1], "falls", -1),
        )
        for name, verb, sign in moves:
            yield _verdict(
                arm,
                f"{split}/{name.partition('/')[2]}",
                f"{_pass_label(name)} on {prompts} prompts {verb}",
                sign,
                table,
                (arm, START, name),
            )
        yield _verdict(
            arm,
            f"{split}/entropy",
            f"Answers to {prompts} prompts lose entropy",
            -1,
            table,
            (arm, START, f"{split}/entropy"),
            unit="nats",
        )
    yield _verdict(
        arm,
        "right",
        "Right answers to training prompts that were given before do not become likelier",
        -1,
        table,
        (arm, None, "train/right_change"),
        unit="nats",
    )


def _update_verdicts(arm: str, other: str, table: ArmTable) -> Iterator[Verdict]:
    yield _verdict(
        arm,
        f"displaces_fewer_than_{other}",
        f"One update displaces fewer questions than under {other}",
        -1,
        table,
        (arm, other, LAZY_SHARE),
    )
    yield _verdict(
        arm,
        f"lifts_more_than_{other}",
        f"One update lifts right answers more than under {other}",
        1,
        table,
        (arm, other, LAZY_CHANGE),
        unit="nats",
    )


def _choice_verdict(arm: str, table: ArmTable) -> Verdict:
    """Whether more of the chosen tokens do harm than of all tokens of wrong answers."""
    more = mean_interval(table.values(arm, PRECISION) - table.values(arm, HARMFUL))
    return Verdict.of(
        f"{arm}/finds_harm",
        arm,
        "Of the tokens that it pushes less, more drag right answers down than of all tokens of "
        "wrong answers",
        "> 0",
        on_side(1, "chosen − all", more),
    )


def _pass_verdicts(arm: str, baseline: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts, names in _pass_figures(table):
        yield _verdict(
            arm,
            f"{split}/passes",
            f"{_pass_label(names[-1])} on {prompts} prompts ends above {baseline}'s",
            1,
            table,
            (arm, baseline, names[-1]),
        )


def _pass_figures(table: ArmTable) -> Iterator[tuple[str, str, list[str]]]:
    """The sampled splits, with the name of their prompts and of their pass@k figures."""
    for split, prompts in (("train", "training"), ("heldout", "held-out")):
        if names := pass_names(table.names, split):
            yield split, prompts, names


def _verdict(
    arm: str,
    name: str,
    claim: str,
    sign: Sign,
    table: ArmTable,
    compared: tuple[str, str | None, str],
    *,
    unit: str = "",
) -> Verdict:
    """Judges a claim on one figure of an arm, or on its difference from another arm's."""
    own, other, figure = compared
    compared_table = table if other is None else table.against(other)
    label = "Δ log π" if figure.endswith("right_change") else f"{own} − {other}"
    measured = on_side(sign, label, compared_table.over_seeds(own, figure), unit=unit)
    return Verdict.of(f"{arm}/{name}", arm, claim, "> 0" if sign > 0 else "< 0", measured)


def _pass_label(name: str) -> str:
    return f"pass@{name.rpartition('_')[2]}"


def _arms_with_rule(objectives: Objectives, rule: str) -> list[str]:
    return [
        arm
        for arm, objective in objectives.items()
        if isinstance(objective, ClippedConfig) and objective.advantage_rule.name == rule
    ]
