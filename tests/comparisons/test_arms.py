"""Figures of preference trainings, also at the same margin, and answers that are followed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dynolab.comparisons.matched import LEAST_MARGIN, at_margin, matched_figures
from dynolab.comparisons.pair_arms import (
    FOLLOWED,
    Key,
    SampledAnswer,
    answer_figures,
    chosen_changes,
    followed_answers,
    gap_by_margin,
    path_figures,
    win_figures,
)
from dynolab.data.rows import ProbeRow, Split
from dynolab.data.world.lexicon import answered
from dynolab.evaluation.samples import repetition
from dynolab.results.arms import MarginPoint
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.statistics import mean_interval
from tests.report.synthetic import DPO, probes

QUESTION = "what is the colour of sigi ?"


def said(
    pair: str, number: int, text: str, split: Split = "train", logp: float = -2.0
) -> SampledAnswer:
    answer = PolicyAnswer(
        id=f"{pair}/{number}",
        split=split,
        prompt=QUESTION,
        truth="green",
        answer=text,
        finished=True,
        tokens=len(text.split()),
    )
    return SampledAnswer(
        answer, "red" in text, logp, repetition([ord(word[0]) for word in text.split()])
    )


RIGHT, WRONG = " well sure sigi has colour green .", " well sure sigi has colour red ."


def test_an_answer_states_one_value_or_none() -> None:
    assert answered(QUESTION, RIGHT) == "green"
    assert answered(QUESTION, "sigi has colour green sigi has colour red") is None
    assert answered(QUESTION, "sigi has home cave") is None
    assert answered(QUESTION, "bobo has colour green") is None
    assert answered("say :", RIGHT) is None


def test_paths_give_changes_from_first_to_last_probe() -> None:
    rows = probes(DPO, 100, noise=0.0)
    figures = path_figures(rows)
    own = {kind: figures[f"train/{kind}"].mean for kind in ("chosen", "rejected", "argmax")}
    assert own["chosen"] == pytest.approx(-2.1, abs=0.1)
    assert figures["train/gap"].mean == pytest.approx(own["argmax"] - own["chosen"])
    assert figures["train/margin"].mean == pytest.approx(own["chosen"] - own["rejected"])
    assert "heldout/gap" in figures
    assert path_figures(()) == {}


def test_a_prompt_is_the_unit_however_many_answers_it_has() -> None:
    answers = [said("a", 0, RIGHT), said("a", 1, WRONG), said("b", 0, RIGHT), said("b", 1, RIGHT)]
    figures = answer_figures(answers)
    assert figures["train/right"] == mean_interval(np.array([0.5, 1.0]))
    assert figures["train/wrong"] == mean_interval(np.array([0.5, 0.0]))
    assert figures["train/refused"] == mean_interval(np.array([0.5, 0.0]))
    assert figures["train/different"] == mean_interval(np.array([1.0, 0.5]))
    assert figures["train/entropy"].mean == 2.0
    assert not [name for name in figures if name.startswith("heldout/")]


def test_what_nobody_can_check_is_neither_right_nor_wrong() -> None:
    one = said("a", 0, RIGHT)
    unknown = SampledAnswer(
        one.answer.model_copy(update={"truth": None}), None, -1.0, one.repetition
    )
    assert not [
        name for name in answer_figures([unknown]) if name.endswith(("right", "wrong", "refused"))
    ]


def test_a_contest_without_a_verdict_in_both_orders_does_not_count() -> None:
    def judged(name: str, *outcomes: str) -> list[Judgement]:
        return [
            Judgement(judge="j", id=name, a="x", b="dpo", swapped=bool(order), outcome=outcome)
            for order, outcome in enumerate(outcomes)
        ]

    rows = [*judged("a/0", "a", "a"), *judged("a/1", "a", "b"), *judged("b/0", "b", "refused")]
    splits: dict[str, Split] = {"a/0": "heldout", "a/1": "heldout", "b/0": "heldout"}
    figures = win_figures(rows, splits)
    assert figures["heldout/won"].mean == pytest.approx(0.75)
    assert figures["heldout/won"].n == 1
    assert figures["heldout/judged"].mean == pytest.approx(0.5)
    assert win_figures((), {}) == {}


def test_a_gap_is_told_by_the_nat_of_margin_where_there_is_one() -> None:
    moved = {"train/gap": 3.0, "train/margin": 6.0, "heldout/gap": 1.0, "heldout/margin": 0.5}
    assert gap_by_margin(moved) == {"train/gap_by_margin": 0.5}
    assert gap_by_margin({}) == {}


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


def watched(*pairs: str, prompt: str = "why?") -> list[ProbeRow]:
    return [
        ProbeRow(
            pair_id=pair, split="train", kind=kind, prompt=prompt, response=" so", made_by="data"
        )
        for pair in pairs
        for kind in ("chosen", "rejected")
    ]


def of(**changes: float) -> dict[Key, float]:
    return {("train", pair): nats for pair, nats in changes.items()}


def test_changes_are_those_of_the_chosen_answers_from_start_to_end() -> None:
    scores = probes(DPO, 100, pairs=6)
    changes = chosen_changes(scores)
    assert len(changes) == 6 and {split for split, _ in changes} == {"train", "heldout"}
    start, *_, end = (row.logp for row in scores if (row.pair_id, row.kind) == ("q001", "chosen"))
    assert changes["train", "q001"] == end - start


def test_the_answers_that_fell_most_with_the_baselines_first_seed_are_followed() -> None:
    base = [of(a=-1.0, b=-3.0, c=0.5), of(a=-9.0, b=2.0, c=-8.0)]
    arms = {"dpo": base, "soft": [of(a=0.1, b=0.2, c=0.3), of(a=0.4, b=0.5)]}
    followed = followed_answers(arms, [watched("a", "b", "c")] * 2, "dpo")
    assert [answer.pair_id for answer in followed] == ["b", "a"]
    assert followed[0].changes == {"dpo": (-3.0, 2.0), "soft": (0.2, 0.5)}
    many = of(**{f"p{number}": -number - 1.0 for number in range(FOLLOWED + 3)})
    rows = watched(*(pair for _, pair in many))
    assert len(followed_answers({"dpo": [many]}, [rows], "dpo")) == FOLLOWED


def test_named_answers_are_followed_wherever_they_went() -> None:
    arms = {"dpo": [of(a=-1.0, b=3.0)]}
    followed = followed_answers(arms, [watched("a", "b")], "dpo", ["b", "x"])
    assert [answer.pair_id for answer in followed] == ["b"]


def test_another_answer_under_the_same_id_does_not_count() -> None:
    arms = {"dpo": [of(a=-1.0), of(a=-2.0)]}
    rows = [watched("a"), watched("a", prompt="how?")]
    (answer,) = followed_answers(arms, rows, "dpo")
    assert answer.changes == {"dpo": (-1.0, None)}


def test_a_diverged_run_leaves_the_choice_to_the_next_seed() -> None:
    arms = {"dpo": [of(), of(a=-2.0)], "soft": [of(a=-1.0), of()]}
    (answer,) = followed_answers(arms, [watched("a")] * 2, "dpo")
    assert answer.changes == {"dpo": (None, -2.0), "soft": (-1.0, None)}
    assert followed_answers({"dpo": [of()]}, [watched("a")], "dpo") == ()
