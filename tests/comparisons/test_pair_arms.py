"""Figures of one preference training: means over prompts, and what answers count as."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.comparisons.pair_arms import (
    SampledAnswer,
    answer_figures,
    gap_by_margin,
    path_figures,
    win_figures,
)
from dynolab.data.rows import Split
from dynolab.data.world.lexicon import answered
from dynolab.evaluation.samples import repetition
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
