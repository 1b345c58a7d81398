"""Claims about trainings on sampled groups, and their verdicts.

Figures are means over seeds with t-intervals, paired by seed where two arms or before and after
are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dynolab.claims.verdict import Sign, Verdict, on_side
from dynolab.comparisons.arm_table import LAZY_CHANGE, LAZY_SHARE, START, ArmTable, pass_names
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
    verdicts = [*_of_baseline(baseline, table)]
    random = _with_rule(objectives, "random_tokens")
    for arm in _with_rule(objectives, "nthr"):
        for other in (baseline, *random):
            verdicts += _of_one_update(arm, other, table)
    for arm, objective in objectives.items():
        if isinstance(objective, SimKOConfig):
            verdicts += _keeps_passes(arm, baseline, table)
    return tuple(verdicts)


def _of_baseline(arm: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts, names in _passes(table):
        moves: tuple[tuple[str, str, Sign], ...] = (
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


def _of_one_update(arm: str, other: str, table: ArmTable) -> Iterator[Verdict]:
    yield _judged(
        arm,
        f"displaces_fewer_than_{other}",
        f"One update displaces fewer questions than under {other}",
        -1,
        table,
        (arm, other, LAZY_SHARE),
    )
    yield _judged(
        arm,
        f"lifts_more_than_{other}",
        f"One update lifts right answers more than under {other}",
        1,
        table,
        (arm, other, LAZY_CHANGE),
        unit="nats",
    )


def _keeps_passes(arm: str, baseline: str, table: ArmTable) -> Iterator[Verdict]:
    for split, prompts, names in _passes(table):
        yield _judged(
            arm,
            f"{split}/passes",
            f"{_pass(names[-1])} on {prompts} prompts ends above {baseline}'s",
            1,
            table,
            (arm, baseline, names[-1]),
        )


def _passes(table: ArmTable) -> Iterator[tuple[str, str, list[str]]]:
    """The splits that were sampled, what their prompts are called, and their figures pass@k."""
    for split, prompts in (("train", "training"), ("heldout", "held-out")):
        if names := pass_names(table.names, split):
            yield split, prompts, names


def _judged(
    arm: str,
    name: str,
    claim: str,
    sign: Sign,
    table: ArmTable,
    compared: tuple[str, str | None, str],
    *,
    unit: str = "",
) -> Verdict:
    """A claim on one figure of an arm: on its difference to another arm's where there is one."""
    own, other, figure = compared
    compared_with = table if other is None else table.against(other)
    what = "Δ log π" if figure.endswith("right_change") else f"{own} − {other}"
    measured = on_side(sign, what, compared_with.over_seeds(own, figure), unit=unit)
    return Verdict.of(f"{arm}/{name}", arm, claim, "> 0" if sign > 0 else "< 0", measured)


def _pass(name: str) -> str:
    return f"pass@{name.rpartition('_')[2]}"


def _with_rule(objectives: Objectives, rule: str) -> list[str]:
    return [
        arm
        for arm, objective in objectives.items()
        if isinstance(objective, ClippedConfig) and objective.advantage_rule.name == rule
    ]
