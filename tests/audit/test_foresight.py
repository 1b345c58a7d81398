"""Rank correlation, AUC and intervals of rankings that are known to be good, bad or empty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from dynolab.audit.foresight import RISKY, foresight, risk, worst_first
from dynolab.results.audit import ChosenChange, PairAudit


def rows(values: Sequence[float], split: str = "train") -> list[PairAudit]:
    """Pairs whose every quantity is the given value, in each ranking's own direction."""
    return [
        PairAudit(
            pair_id=f"p{number}",
            split=split,
            chosen_tokens=4,
            rejected_tokens=4,
            chosen_logp=-4.0,
            pull_up=0.0,
            **{name: -sign * value for name, sign in RISKY.items()},
        )
        for number, value in enumerate(values)
    ]


def changes(values: Sequence[float], split: str = "train") -> list[ChosenChange]:
    return [
        ChosenChange(pair_id=f"p{number}", split=split, change=value)
        for number, value in enumerate(values)
    ]


def test_a_ranking_in_the_order_of_the_falls_foresees_all() -> None:
    moved = np.linspace(-2, 1, 30)
    judged = foresight(rows(moved**3), changes(moved))
    assert [row.ranking for row in judged] == list(RISKY)
    for row in judged:
        assert (row.pairs, row.fallen) == (30, 20)
        assert (row.spearman, row.spearman_high) == (pytest.approx(1), pytest.approx(1))
        assert row.auc == row.auc_low == 1


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(2), 0
    for _ in range(5):
        moved = rng.normal(size=80)
        noisy = {name: moved + rng.normal(size=80) for name in RISKY}
        audited = [
            row.model_copy(update={name: -RISKY[name] * noisy[name][at] for name in RISKY})
            for at, row in enumerate(rows(moved))
        ]
        # Spearman's ρ of normal variables correlated by 1/√2.
        truth = 6 / math.pi * math.asin(0.5**0.5 / 2)
        found = foresight(audited, changes(moved))
        covered += sum(one.spearman_low < truth < one.spearman_high for one in found)
    assert covered >= 34  # of 40; 38 are expected


def test_splits_are_judged_apart_and_pairs_without_a_change_left_out() -> None:
    train, held = [-1.0, 0.5, -0.3, 0.2], [0.4, -0.6, -0.1]
    found = foresight(
        rows(train) + rows(held, "heldout"), changes(train[:3]) + changes(held, "heldout")
    )
    sizes = {(one.split, one.pairs, one.fallen) for one in found}
    assert sizes == {("train", 3, 2), ("heldout", 3, 2)}


def test_where_nothing_differs_there_is_no_number() -> None:
    all_fell = foresight(rows([1.0, 1.0, 1.0]), changes([-1.0, -2.0, -3.0]))[0]
    assert math.isnan(all_fell.auc)
    assert math.isnan(all_fell.spearman)
    assert type(all_fell).model_validate_json(all_fell.model_dump_json()).pairs == 3


def test_the_worst_pair_comes_first_and_ties_keep_their_order() -> None:
    audited = rows([0.5, -1.0, 0.5, 2.0])
    for ranking in RISKY:
        assert [row.pair_id for row in worst_first(audited, ranking)] == ["p1", "p0", "p2", "p3"]
        assert (np.diff(risk(worst_first(audited, ranking), ranking)) <= 0).all()
