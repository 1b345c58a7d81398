"""Figures at the same margin, by hand."""

from __future__ import annotations

import math

import pytest

from dynolab.comparisons.matched import LEAST_MARGIN, at_margin, matched_figures
from dynolab.results.arms import MarginPoint


def path(*points: tuple[int, float, float, float]) -> list[MarginPoint]:
    names = ("step", "margin", "gap", "chosen")
    return [MarginPoint(**dict(zip(names, point, strict=True))) for point in points]


FAST = path((0, 0, 0, 0), (10, 4, 2, -1), (20, 12, 6, -5))
SLOW = path((0, 0, 0, 0), (10, 1, 0.1, 0.2), (20, 3, 0.5, 0.4), (30, 8, 1, 0))


def test_figures_are_linear_between_probes() -> None:
    assert at_margin(FAST, 8, "gap") == 4
    assert at_margin(FAST, 8, "chosen") == -3
    assert at_margin(FAST, 8, "step") == 15
    assert math.isnan(at_margin(FAST, 13, "gap"))


def test_it_is_the_first_time_that_a_margin_is_reached() -> None:
    falls = path((0, 0, 0, 0), (10, 4, 1, 0), (20, 2, 5, 0), (30, 4, 9, 0))
    assert at_margin(falls, 3, "gap") == 0.75


def test_two_trainings_are_compared_at_what_both_reach() -> None:
    figures = matched_figures(SLOW, FAST)
    expected = {"gap": 1 - 4, "chosen": 0 + 3, "steps": 30 / 15, "margin": 8}
    assert figures == pytest.approx({f"matched/{name}": x for name, x in expected.items()})
    back = matched_figures(FAST, SLOW)
    assert back["matched/gap"] == -figures["matched/gap"]


def test_a_small_margin_is_no_comparison() -> None:
    assert matched_figures(path((0, 0, 0, 0), (10, 0.9 * LEAST_MARGIN, 1, 1)), FAST) == {}
    assert matched_figures(path((0, 0, 0, 0), (10, 1.1 * LEAST_MARGIN, 1, 1)), FAST) != {}
    assert matched_figures([], FAST) == {}
