"""What counts as lost of a training's metrics."""

from __future__ import annotations

import pytest

from tests.flows.history import History, lost

NAN = float("nan")
VALUES = {
    "train/loss": [(1, 0.7), (2, 0.6)],
    "train/examples_per_s": [(1, 8.0), (2, 9.0)],
    "probe/chosen/logp": [(0, -3.0), (2, NAN)],
}


def history(**changes: list[tuple[int, float]]) -> History:
    return History("run", "FINISHED", VALUES | changes)


def test_the_same_values_lose_nothing_and_speeds_may_differ() -> None:
    again = history(**{"train/examples_per_s": [(2, 1.0), (1, 2.0)]})
    assert lost(again, history()) == []


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([(1, 0.7)], 1),  # missing
        ([], 2),
        ([(1, 0.7), (2, 0.6), (2, 0.6)], 1),  # doubled
        ([(1, 0.7), (2, 0.6), (3, 0.5)], 1),  # of a step that nobody made
        ([(1, 0.7), (2, 0.6000000001)], 2),  # another value
    ],
)
def test_what_is_missing_doubled_or_different_is_lost(
    values: list[tuple[int, float]], count: int
) -> None:
    assert len(lost(history(**{"train/loss": values}), history())) == count


def test_a_doubled_speed_is_lost_and_what_comes_later_is_not_looked_at() -> None:
    assert len(lost(history(**{"train/examples_per_s": [(1, 1.0), (1, 1.0)]}), history())) == 2
    assert lost(history(**{"train/loss": [(1, 0.7)]}), history(), up_to=1) == []


def test_a_training_without_metrics_is_nothing_to_compare_with() -> None:
    with pytest.raises(AssertionError):
        lost(history(), History("run", "FINISHED", {}))
