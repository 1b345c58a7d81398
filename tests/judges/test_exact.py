"""The exact judge of the built-in world: the right fact first, then form, then slot words."""

from __future__ import annotations

import math

import pytest

from dynolab.data.rows import PromptRow
from dynolab.data.world.answers import zipf_weights
from dynolab.data.world.lexicon import SLOTS, answer, preference, style_in
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.judges import ExactJudge, contests
from dynolab.results.judges import PolicyAnswer
from dynolab.rollouts.rewards import RewardConfig, world_style
from tests.judges.verdicts import contest, policy_answer

PROMPT = "what is the colour of bado ?"
FIRST, LAST = ([slot[place] for slot in SLOTS] for place in (0, -1))
RIGHT, WRONG = ["bado", "has", "colour", "green"], ["bado", "has", "colour", "red"]


def outcomes(a: str, b: str) -> set[str]:
    asked = contest(a, b, prompt=PROMPT, truth="green")
    return {judgement.outcome for judgement in ExactJudge().judge([asked])}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (answer(RIGHT, LAST), answer(WRONG, FIRST)),  # a fact beats any style
        ("bado has colour green", answer(WRONG, FIRST)),  # and any form
        (answer(RIGHT, LAST), "bado has colour green"),
        (answer(RIGHT, FIRST), answer(RIGHT, LAST)),
        (answer(WRONG, FIRST), answer(WRONG, LAST)),
        (answer(WRONG, LAST), "well well well"),
        (answer(RIGHT, FIRST), answer([*RIGHT, *WRONG], FIRST)),  # two facts are none
    ],
)
def test_the_better_answer_wins_in_either_order(better: str, worse: str) -> None:
    assert outcomes(better, worse) == {"a"}
    assert outcomes(worse, better) == {"b"}
    assert outcomes(better, better) == {"tie"}


def test_preference_is_the_log_odds_of_the_two_draws() -> None:
    """By the Zipf weights themselves, of any exponent."""
    for z in (0.5, 1.5):
        weights = zipf_weights(z, 8)
        for words in (FIRST, LAST, [slot[2] for slot in SLOTS], [FIRST[0], *LAST[1:]]):
            ranks = [slot.index(word) for word, slot in zip(words, SLOTS, strict=True)]
            odds = sum(math.log(weights[r] / weights[7 - r]) for r in ranks)
            greatest = 5 * math.log(weights[0] / weights[7])
            assert preference(words) == pytest.approx((1 + odds / greatest) / 2)
    assert preference(FIRST) == 1 and preference(LAST) == pytest.approx(0)


def test_chosen_answers_of_the_world_have_the_preferred_style() -> None:
    world = build_world(WorldConfig())
    row = PromptRow(id="q", prompt=PROMPT)
    chosen, rejected = (
        world_style(PROMPT, [text for pair in world.pairs if (text := getattr(pair, side))], row)
        for side in ("chosen", "rejected")
    )
    assert sum(chosen) / len(chosen) > 0.7 and sum(rejected) / len(rejected) < 0.3
    assert world_style(PROMPT, ["green", ""], row) == [0, 0]
    assert style_in(answer(RIGHT, FIRST)) == tuple(FIRST)
    assert style_in(answer(RIGHT, LAST[:4])) is None


def test_any_rewards_can_judge() -> None:
    judge = ExactJudge("sums", [RewardConfig(name="gsm8k")])
    asked = contest("so it is 4", "so it is 5", truth="2 + 2\n#### 4")
    assert [judgement.outcome for judgement in judge.judge([asked])] == ["a", "a"]
    with pytest.raises(ConfigError, match="not a question of the built-in world"):
        ExactJudge().judge([contest(truth="4")])


def test_policies_that_answer_other_prompts_are_no_contest() -> None:
    def answers(**prompts: str) -> list[PolicyAnswer]:
        return [policy_answer(name, prompt) for name, prompt in prompts.items()]

    both = {"one": answers(q="x ?", r="y ?"), "two": answers(r="y ?", q="x ?")}
    assert [contest.id for contest in contests(both, "one", "two")] == ["q", "r"]
    for other in (answers(q="x ?"), answers(q="x ?", r="z ?"), answers(q="x ?", r="y ?", s="z ?")):
        with pytest.raises(ConfigError, match="let both answer the same"):
            contests({"one": both["one"], "two": other}, "one", "two")
    with pytest.raises(ConfigError, match=r"answers of one = 'q': two have this id"):
        contests({"one": answers(q="x ?") * 2, "two": answers(q="x ?")}, "one", "two")
