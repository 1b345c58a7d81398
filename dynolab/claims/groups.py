"""What is claimed of trainings on sampled groups, and what a comparison shows of it.

A claim's quantities are means over seeds with t-intervals, paired by seed where two arms or before
and after are compared; a claim is judged as those of `verdicts.py` are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from dynolab.claims.study import Quantity, Verdict
from dynolab.comparisons.group_arms import LAZY_CHANGE, LAZY_SHARE, START, ArmTable, pass_names
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.simko import SimKOConfig

Objectives = Mapping[str, AnyConfig]


def assess_arms(objectives: Objectives, baseline: str, table: ArmTable) -> tuple[Verdict, ...]:
    """All claims about the arms that are there.

    Of the baseline: it raises pass@1 and lowers pass@k (arXiv 2510.14807), and right answers do
    not become likelier (Deng et al., arXiv 2505.18830). Of NTHR: one update displaces fewer
    questions than the baseline's and than that of its control of random tokens, and lifts right
    answers more. Of SimKO: its pass@k is above the baseline's.
    """
    found = [*_of_baseline(baseline, table)]
    random = _with_rule(objectives, "random_tokens")
    for arm in _with_rule(objectives, "nthr"):
        for other in (baseline, *random):
            found += [_displaces_fewer(arm, other, table), _lifts_more(arm, other, table)]
    for arm, objective in objectives.items():
        if isinstance(objective, SimKOConfig):
            found += _keeps_passes(arm, baseline, table)
    return tuple(found)


def _of_baseline(arm: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts in (("train", "training"), ("heldout", "held-out")):
        names = pass_names(table.names, split)
        if not names:
            continue
        moves: tuple[tuple[str, str, Literal[1, -1]], ...] = (
            (names[0], "rises", 1),
            (names[-1], "falls", -1),
        )
        for name, verb, sign in moves:
            yield _judged(
                arm,
                f"{split}/{name.partition('/')[2]}",
                f"{_pass(name)} on {prompts} prompts {verb}",
                sign,
                table,
                (arm, START, name),
            )
    yield _judged(
        arm,
        "right",
        "Right answers to training prompts that were given before do not become likelier",
        -1,
        table,
        (arm, None, "train/right_change"),
        unit="nats",
    )


def _displaces_fewer(arm: str, other: str, table: ArmTable) -> Verdict:
    return _judged(
        arm,
        f"displaces_fewer_than_{other}",
        f"One update displaces fewer questions than under {other}",
        -1,
        table,
        (arm, other, LAZY_SHARE),
    )


def _lifts_more(arm: str, other: str, table: ArmTable) -> Verdict:
    return _judged(
        arm,
        f"lifts_more_than_{other}",
        f"One update lifts right answers more than under {other}",
        1,
        table,
        (arm, other, LAZY_CHANGE),
        unit="nats",
    )


def _keeps_passes(arm: str, baseline: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts in (("train", "training"), ("heldout", "held-out")):
        if names := pass_names(table.names, split):
            yield _judged(
                arm,
                f"{split}/passes",
                f"{_pass(names[-1])} on {prompts} prompts ends above {baseline}'s",
                1,
                table,
                (arm, baseline, names[-1]),
            )


def _judged(
    arm: str,
    name: str,
    claim: str,
    sign: Literal[1, -1],
    table: ArmTable,
    compared: tuple[str, str | None, str],
    *,
    unit: str = "",
) -> Verdict:
    """A claim on one figure of an arm: on its difference to another arm's where there is one."""
    own, other, figure = compared
    compared_with = table if other is None else table.against(other)
    interval = compared_with.over_seeds(own, figure)
    what = "Δ log π" if figure.endswith("right_change") else f"{own} − {other}"
    quantity = Quantity(what, sign, interval, unit=unit)
    return Verdict(f"{arm}/{name}", arm, claim, "> 0" if sign > 0 else "< 0", (quantity,))


def _pass(name: str) -> str:
    return f"pass@{name.rpartition('_')[2]}"


def _with_rule(objectives: Objectives, rule: str) -> list[str]:
    return [
        arm
        for arm, one in objectives.items()
        if isinstance(one, ClippedConfig) and one.advantage_rule.name == rule
    ]
