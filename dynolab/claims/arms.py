"""Claims about arms of a comparison, and their verdicts: sampled groups, remedies for squeezing.

Figures are means over seeds with t-intervals; comparisons of two arms, or of before and after, are
paired by seed. One seed gives no interval, so every outcome is unclear; so is a remedy's by a few
pairs or prompts (`LEAST_COUNT`), because the interval over seeds does not say what others would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import nan

from dynolab.claims.verdict import (
    Claimed,
    Measurement,
    Sign,
    Verdict,
    above,
    below,
    judged,
    on_side,
)
from dynolab.comparisons.arm_table import (
    HARMFUL,
    LAZY_CHANGE,
    LAZY_SHARE,
    PRECISION,
    START,
    ArmTable,
    pass_names,
)
from dynolab.objectives.advantage_rules import CLIPPING
from dynolab.objectives.grpo import GRPOConfig, SimKOConfig
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.statistics import Interval, mean_interval

Objectives = Mapping[str, AnyConfig]


def assess_arms(objectives: Objectives, baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """Judges all claims about the arms present.

    Baseline: it raises pass@1 and lowers pass@k (arXiv 2510.14807), and right answers do not
    become likelier (Deng et al., arXiv 2505.18830); its answers lose entropy and, in the world of
    two strategies, take the rarer one less often. NTHR: one update
    displaces fewer questions than one of the baseline or of the random-token control, and lifts
    right answers more; of the tokens that it chooses more do harm than of all. SimKO, an entropy
    bonus, and training on right answers alone: pass@k is above the baseline's.
    """
    verdicts = judged(baseline, baseline, _baseline_claims(baseline, table))
    random = _arms_with_rule(objectives, "random_tokens")
    for arm in _arms_with_rule(objectives, "nthr"):
        claims = []
        for other in (baseline, *random):
            claims += _update(arm, other, table)
        more = mean_interval(table.values(arm, PRECISION) - table.values(arm, HARMFUL))
        if table.mean(arm, PRECISION).n:
            harm = (
                "finds_harm",
                "Of the tokens that it pushes less, more drag right answers down than of all "
                "tokens of wrong answers",
                "> 0",
                on_side(1, "chosen − all", more),
            )
            claims.append(harm)
        verdicts += judged(arm, arm, claims)
    for arm, objective in objectives.items():
        if arm != baseline and _keeps_answers(objective):
            verdicts += judged(arm, arm, _passes_claims(arm, baseline, table))
    return tuple(verdicts)


KEEPING = ("positives_only", *CLIPPING)
"""Advantage rules that are said to keep what several answers find."""


def _keeps_answers(objective: AnyConfig) -> bool:
    """Whether an objective is said to keep what several answers find."""
    if isinstance(objective, GRPOConfig):
        rule, dose = objective.advantage_rule, objective.designed_dose
        wider = objective.surrogate == "clipped" and objective.clip_high > objective.clip_low
        by_loss = bool(objective.entropy) or objective.kl_cov is not None or wider
        doses_entropy = dose is not None and dose.protect == "entropy"
        explores = rule.name == "thr" and rule.p < 0
        return by_loss or doses_entropy or explores or rule.name in KEEPING
    return isinstance(objective, SimKOConfig)


def _passes_claims(arm: str, baseline: str, table: ArmTable) -> Iterator[Claimed]:
    for split, prompts, names in _pass_figures(table):
        claim = f"{_pass_label(names[-1])} on {prompts} prompts ends above {baseline}'s"
        figure = _difference(1, table, arm, baseline, names[-1])
        yield f"{split}/passes", claim, "> 0", figure


def _baseline_claims(arm: str, table: ArmTable) -> Iterator[Claimed]:
    for split, prompts, names in _pass_figures(table):
        first, last = names[0], names[-1]
        yield (
            first,
            f"{_pass_label(first)} on {prompts} prompts rises",
            "> 0",
            _difference(1, table, arm, START, first),
        )
        yield (
            last,
            f"{_pass_label(last)} on {prompts} prompts falls",
            "< 0",
            _difference(-1, table, arm, START, last),
        )
        yield (
            f"{split}/entropy",
            f"Answers to {prompts} prompts lose entropy",
            "< 0",
            _difference(-1, table, arm, START, f"{split}/entropy", "nats"),
        )
        other_way = f"{split}/by_other_way"
        if other_way in table.names:
            yield (
                other_way,
                f"Fewer answers to {prompts} prompts take the strategy that is no habit",
                "< 0",
                _difference(-1, table, arm, START, other_way),
            )
    yield (
        "right",
        "Right answers to training prompts that were given before do not become likelier",
        "< 0",
        on_side(-1, "Δ log π", table.over_seeds(arm, "train/right_change")),
    )


def _update(arm: str, other: str, table: ArmTable) -> list[Claimed]:
    """What one update does, against one of another arm."""
    return [
        (
            f"displaces_fewer_than_{other}",
            f"One update displaces fewer questions than under {other}",
            "< 0",
            _difference(-1, table, arm, other, LAZY_SHARE),
        ),
        (
            f"lifts_more_than_{other}",
            f"One update lifts right answers more than under {other}",
            "> 0",
            _difference(1, table, arm, other, LAZY_CHANGE, "nats"),
        ),
    ]


def _difference(
    sign: Sign, table: ArmTable, arm: str, other: str, figure: str, unit: str = ""
) -> Measurement:
    """An arm's figure less another arm's, over seeds."""
    interval = table.against(other).over_seeds(arm, figure)
    return on_side(sign, f"{arm} − {other}", interval, unit=unit)


def _pass_figures(table: ArmTable) -> Iterator[tuple[str, str, list[str]]]:
    """The sampled splits, with the name of their prompts and of their pass@k figures."""
    for split, prompts in (("train", "training"), ("heldout", "held-out")):
        names = pass_names(table.names, split)
        if names:
            yield split, prompts, names


def _pass_label(name: str) -> str:
    return f"pass@{name.rpartition('_')[2]}"


def _arms_with_rule(objectives: Objectives, rule: str) -> list[str]:
    return [
        arm
        for arm, objective in objectives.items()
        if isinstance(objective, ClippedConfig) and objective.advantage_rule.name == rule
    ]


WON = "heldout/won"
EVEN = 0.5
"""Share of contests won at which an arm is as good as the baseline."""


def assess_remedies(arms: Sequence[str], baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """Judges all claims about the arms.

    More of their answers are right, where that can be checked; their gap grows less than the
    baseline's, also per nat of margin learned; their chosen answers end higher; and their answers
    to held-out prompts are preferred.
    """
    verdicts = []
    for arm in arms:
        if arm != baseline:
            verdicts += judged(arm, arm, _remedy_claims(arm, baseline, table))
    return tuple(verdicts)


_RIGHT = (("heldout", "right_heldout", "held-out"), ("train", "right", "training"))
"""Split, the claim's name, and what it calls the prompts."""


def _remedy_claims(arm: str, baseline: str, table: ArmTable) -> Iterator[Claimed]:
    against = f"{arm} − {baseline}"
    for split, name, prompts in _RIGHT:
        if f"{split}/right" in table.names:
            claim = f"More answers to {prompts} prompts are right than under {baseline}"
            interval = _paired(arm, baseline, f"{split}/right", table)
            yield name, claim, "> 0", above(f"Δ share: {against}", interval, unit="")
    yield (
        "gap",
        f"The gap y* − y⁺ grows less than under {baseline}",
        "< 0",
        below(f"Δ gap: {against}", _paired(arm, baseline, "train/gap", table)),
    )
    by_margin = _paired(arm, baseline, "train/gap_by_margin", table)
    yield (
        "gap_by_margin",
        "It grows less by the nat of margin, too",
        "< 0",
        below(f"Δ gap/Δ margin: {against}", by_margin, unit="nats by the nat"),
    )
    yield (
        "chosen",
        f"The chosen answer ends higher than under {baseline}",
        "> 0",
        above(f"Δ chosen: {against}", _paired(arm, baseline, "train/chosen", table)),
    )
    yield (
        "won",
        f"Its answers to held-out prompts are preferred to {baseline}'s",
        f"> {EVEN:g}",
        above("share of contests", _unless_few(table.mean(arm, WON), WON, table), EVEN, unit=""),
    )


def _paired(arm: str, baseline: str, name: str, table: ArmTable) -> Interval:
    return _unless_few(table.difference(arm, baseline, name), name, table)


def _unless_few(interval: Interval, name: str, table: ArmTable) -> Interval:
    """The interval, without its ends if the figure is of a few pairs or prompts alone."""
    return Interval(interval.mean, nan, nan, interval.n) if table.few(name) else interval
