"""Judges that compute: by facts, form and style of the built-in world, and by log-probability."""

from __future__ import annotations

import math

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.data.rows import PromptRow
from dynolab.data.world.answers import zipf_weights
from dynolab.data.world.lexicon import SLOTS, answer, preference, style_in
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.judges import ExactJudge, contests, count
from dynolab.judges.log_prob import TOO_LONG, LogProbJudge
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.judges import Contest, PolicyAnswer
from dynolab.rollouts.rewards import RewardConfig, world_style
from models.tiny import TinyConfig, build_tiny
from tests.judges.verdicts import contest, policy_answer

PROMPT = "what is the colour of bado ?"
FIRST, LAST = ([slot[place] for slot in SLOTS] for place in (0, -1))
RIGHT, WRONG = ["bado", "has", "colour", "green"], ["bado", "has", "colour", "red"]


def exact_outcomes(a: str, b: str) -> set[str]:
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
    assert exact_outcomes(better, worse) == {"a"}
    assert exact_outcomes(worse, better) == {"b"}
    assert exact_outcomes(better, better) == {"tie"}


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


WORLD = build_world(WorldConfig(entities=20, train_pairs=12, heldout_pairs=6, corpus_rows=8))
TOKENIZER = WORLD.tokenizer()
MODEL = build_tiny(TinyConfig(), TOKENIZER).eval()


def judge(context: int = 64, **settings: float) -> LogProbJudge:
    encoder = Encoder(TOKENIZER, context, "drop")
    return LogProbJudge("reference", ResponseLogits(MODEL), encoder, batch=3, **settings)  # type: ignore[arg-type]


@torch.no_grad()
def mean_logp(prompt: str, answer: str) -> float:
    ids = TOKENIZER(prompt)["input_ids"]
    said = [*TOKENIZER(answer, add_special_tokens=False)["input_ids"], TOKENIZER.eos_token_id]
    logps = MODEL(torch.tensor([[*ids, *said]])).logits[0].double().log_softmax(-1)
    places = range(len(ids) - 1, len(ids) + len(said) - 1)
    return sum(float(logps[at, token]) for at, token in zip(places, said, strict=True)) / len(said)


def outcomes(judge: LogProbJudge, asked: Contest) -> list[str]:
    return [judgement.outcome for judgement in judge.judge([asked])]


def test_the_answer_that_is_likelier_per_token_wins() -> None:
    asked = [
        contest(pair.chosen, str(other.rejected), name=pair.id, prompt=pair.prompt)
        for pair, other in zip(WORLD.pairs, WORLD.pairs[1:], strict=False)
    ]
    asked += [contest(" well .", asked[0].answer_b, name="short", prompt=asked[0].prompt)]
    judgements = judge().judge(asked)
    for pair, in_order, swapped in zip(asked, judgements[::2], judgements[1::2], strict=True):
        better = mean_logp(pair.prompt, pair.answer_a) > mean_logp(pair.prompt, pair.answer_b)
        assert in_order.outcome == swapped.outcome == ("a" if better else "b")
        assert (in_order.swapped, swapped.swapped) == (False, True)
    assert {judgement.outcome for judgement in judgements} == {"a", "b"}


def test_equal_answers_and_small_differences_tie() -> None:
    pair, other = WORLD.pairs[0], WORLD.pairs[1]
    same = contest(pair.chosen, pair.chosen, prompt=pair.prompt)
    near = contest(pair.chosen, other.chosen, prompt=pair.prompt)
    difference = abs(mean_logp(near.prompt, near.answer_a) - mean_logp(near.prompt, near.answer_b))
    assert outcomes(judge(), same) == ["tie", "tie"]
    assert outcomes(judge(tie_nats=2 * difference), near) == ["tie", "tie"]
    assert "tie" not in outcomes(judge(tie_nats=difference / 2), near)


def test_empty_answers_are_judged_and_too_long_ones_counted() -> None:
    pair = WORLD.pairs[0]
    empty = contest(" ", pair.chosen, prompt=pair.prompt)
    assert count(judge().judge([empty])).parsed == 2
    long = contest(pair.chosen, " well" * 60, name="long", prompt=pair.prompt)
    judgements = judge(context=32).judge([empty, long])
    assert [judgement.outcome for judgement in judgements[2:]] == ["failed", "failed"]
    assert judgements[2].said == TOO_LONG and count(judgements).parsed == 2


def test_a_reference_without_numbers_judges_nothing() -> None:
    broken = build_tiny(TinyConfig(), TOKENIZER)
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(float("nan"))
    encoder = Encoder(TOKENIZER, 64, "drop")
    asked = contest(WORLD.pairs[0].chosen, " well", prompt=WORLD.pairs[0].prompt)
    judgements = LogProbJudge("broken", ResponseLogits(broken), encoder).judge([asked])
    assert {judgement.outcome for judgement in judgements} == {"failed"}
    assert "nan" in judgements[0].said


@pytest.mark.parametrize("batch", [1, 4])
def test_the_batch_does_not_decide(batch: int) -> None:
    asked = [
        contest(pair.chosen, str(pair.rejected), name=pair.id, prompt=pair.prompt)
        for pair in WORLD.pairs
    ]
    encoder = Encoder(TOKENIZER, 64, "drop")
    other = LogProbJudge("reference", ResponseLogits(MODEL), encoder, batch=batch)
    assert other.judge(asked) == judge().judge(asked)
