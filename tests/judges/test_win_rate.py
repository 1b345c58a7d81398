"""Win rates, position bias and agreement on verdicts whose outcome is known by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.metrics import cohen_kappa_score

from dynolab.errors import ConfigError
from dynolab.judges import agreement, count, win_rate
from dynolab.judges.win_rate import cohen_kappa
from dynolab.results.judges import JudgementCounts
from tests.judges.verdicts import judged


def test_a_prompt_is_worth_the_mean_of_its_orders_and_ties_count_half() -> None:
    rate = win_rate(judged({"q1": "aa", "q2": "at", "q3": "tt", "q4": "tb", "q5": "bb"}))
    assert rate.rate == pytest.approx((1 + 0.75 + 0.5 + 0.25 + 0) / 5)
    assert (rate.wins, rate.ties, rate.losses) == (2, 1, 2)
    assert rate.low < rate.rate < rate.high
    assert (rate.judged, rate.prompts, rate.interval.n) == (5, 5, 5)


def test_a_judge_who_takes_what_stands_first_makes_every_prompt_a_tie() -> None:
    rate = win_rate(judged({f"q{n}": "ab" for n in range(9)}))
    assert (rate.rate, rate.ties, rate.flipped) == (0.5, 9, 9)
    assert (rate.first_share, rate.first_low, rate.first_high) == (1, 1, 1)


def test_a_better_policy_does_not_pass_for_a_better_place() -> None:
    rate = win_rate(judged({f"q{n}": "aa" for n in range(9)}))
    assert (rate.rate, rate.first_share, rate.flipped) == (1, 0.5, 0)


def test_a_prompt_without_both_verdicts_does_not_count_and_is_not_lost() -> None:
    rate = win_rate(judged({"q1": "aa", "q2": "au", "q3": "rf", "q4": "bb", "q5": "b"}))
    assert (rate.prompts, rate.judged, rate.rate) == (5, 2, 0.5)
    assert (rate.lowest, rate.highest) == (1 / 5, 4 / 5)
    assert rate.counts == JudgementCounts(asked=9, parsed=6, refused=1, unparsable=1, failed=1)


def test_without_any_verdict_the_rate_is_no_number() -> None:
    rate = win_rate(judged({"q1": "ff", "q2": "ur"}))
    assert math.isnan(rate.rate) and math.isnan(rate.low)
    assert (rate.lowest, rate.highest, rate.judged) == (0, 1, 0)
    assert type(rate).model_validate_json(rate.model_dump_json()).judged == 0


def test_one_and_the_same_verdict_throughout_leaves_room_for_others() -> None:
    few, many = (win_rate(judged({f"q{n}": "aa" for n in range(k)})) for k in (5, 500))
    assert few.rate == many.rate == 1 and few.high == many.high == 1
    assert few.low == pytest.approx(5 / (5 + 1.96**2), abs=1e-4)  # Wilson's at a share of one
    assert 0.99 < many.low < 1
    ties = win_rate(judged({f"q{n}": "tt" for n in range(10)}))
    assert ties.low < 0.5 < ties.high and math.isnan(ties.first_share)


def test_the_interval_covers_the_true_rate_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        said = {f"q{n}": "aa" if rng.random() < 0.6 else "bb" for n in range(60)}
        rate = win_rate(judged(said))
        covered += rate.low <= 0.6 <= rate.high
    assert covered >= 87  # of Binomial(100, 0.95) less happens once in 1,000


def test_judgements_of_several_judges_or_twice_of_one_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="one judge and one pair"):
        win_rate([*judged({"q1": "aa"}), *judged({"q1": "aa"}, "other")])
    with pytest.raises(ConfigError, match="'q1': judge judged it twice in one order"):
        win_rate([*judged({"q1": "aa"}), *judged({"q1": "bb"})])
    with pytest.raises(ConfigError, match="at least one contest"):
        win_rate([])


@given(st.lists(st.text("abtruf", min_size=0, max_size=2), min_size=1, max_size=12))
def test_every_verdict_asked_for_is_counted_once(said: list[str]) -> None:
    judgements = judged({f"q{n}": letters for n, letters in enumerate(said)})
    counts = count(judgements)
    assert counts.asked == len("".join(said))
    assert counts.parsed == sum("".join(said).count(letter) for letter in "abt")
    assert counts.refused == "".join(said).count("r")


def test_counts_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ConfigError, match="must add up to asked = 3"):
        JudgementCounts(asked=3, parsed=1, refused=0, unparsable=0, failed=1)


def test_kappa_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.choice(["a", "b", "tie"], (2, 50), p=[0.5, 0.3, 0.2])
    assert cohen_kappa(first, second) == pytest.approx(cohen_kappa_score(first, second))
    assert cohen_kappa(first, first) == 1
    assert math.isnan(cohen_kappa(np.array(["a", "a"]), np.array(["a", "a"])))


def test_judges_agree_on_what_both_judged() -> None:
    first = judged({"q1": "aa", "q2": "ab", "q3": "bb", "q4": "aa", "q5": "fa"}, "first")
    second = judged({"q1": "aa", "q2": "tt", "q3": "aa", "q4": "uu", "q5": "aa"}, "second")
    agreed = agreement(first, second)
    assert agreed is not None
    assert (agreed.prompts, agreed.share) == (3, pytest.approx(2 / 3))
    assert agreed.kappa == pytest.approx(
        cohen_kappa_score(["a", "tie", "b"], ["a", "tie", "a"], labels=["a", "b", "tie"])
    )
    assert agreed.kappa_low <= agreed.kappa <= agreed.kappa_high
    assert agreement(judged({"q1": "fa"}), second) is None
