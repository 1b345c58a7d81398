"""Leaving named pairs out is judged by leaving out random ones."""

from __future__ import annotations

from typing import Any

import pytest

from dynolab.comparisons.removals import removals
from dynolab.objectives import DPOConfig
from dynolab.results.arms import ArmFacts, ComparedArms, FollowedAnswer

SEEDS = (0, 1, 2)


def compared(**ways: dict[str, Any]) -> ComparedArms:
    """Runs by the pairs that they leave out, and the changes of two answers under three seeds."""
    changes = {"whole": (-5.0, -6.0, -4.0)}
    changes |= {label: tuple(facts.pop("changes")) for label, facts in ways.items()}
    return ComparedArms(
        name="removals",
        arms={"whole": ArmFacts(objective=DPOConfig())}
        | {label: ArmFacts(objective=DPOConfig(), **facts) for label, facts in ways.items()},
        baseline="whole",
        seeds=SEEDS,
        runs=dict.fromkeys(changes, ()),
        training="",
        follow=(),
        followed=tuple(
            FollowedAnswer(
                pair_id=name,
                split="train",
                prompt="?",
                changes={
                    label: tuple(None if value is None else value + shift for value in values)
                    for label, values in changes.items()
                },
            )
            for name, shift in (("a", 0.0), ("b", -2.0))
        ),
    )


def test_a_removal_is_what_it_does_beyond_random_pairs() -> None:
    (removal,) = removals(
        compared(
            named={"filtered_by": "id", "named": ("p", "q"), "changes": (-1.0, -3.0, 0.0)},
            control={"filtered_by": "random", "random": 2, "changes": (-4.0, -4.0, -3.0)},
        )
    )
    assert (removal.run, removal.control, removal.pairs) == ("named", "control", 2)
    assert removal.against_baseline.mean == pytest.approx((4 + 3 + 4) / 3)
    assert removal.control_effect.mean == pytest.approx((1 + 2 + 1) / 3)
    assert removal.against_random.mean == pytest.approx((3 + 1 + 3) / 3)
    assert removal.against_random.n == 3


def test_a_seed_that_does_not_observe_the_answers_is_left_out() -> None:
    (removal,) = removals(
        compared(
            named={"filtered_by": "id", "named": ("p",), "changes": (-1.0, None, 0.0)},
            control={"filtered_by": "random", "random": 1, "changes": (-2.0, -4.0, -2.0)},
        )
    )
    assert removal.against_random.mean == pytest.approx(1.5)
    assert removal.against_random.n == 2


def test_without_random_pairs_nothing_is_said() -> None:
    named = {"filtered_by": "id", "named": ("p",), "changes": (-1.0, -1.0, -1.0)}
    assert removals(compared(named=named)) == []
