"""The judge by a reference model's log-probability, against sums written out."""

from __future__ import annotations

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.judges import count
from dynolab.judges.log_prob import TOO_LONG, LogProbJudge
from dynolab.likelihood.token_logps import ResponseLogits
from models.tiny import TinyConfig, build_tiny
from tests.judges.verdicts import contest

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


def test_the_answer_that_is_likelier_per_token_wins() -> None:
    asked = [
        contest(pair.chosen, str(other.rejected), name=pair.id, prompt=pair.prompt)
        for pair, other in zip(WORLD.pairs, WORLD.pairs[1:], strict=False)
    ]
    asked += [contest(" well .", asked[0].answer_b, name="short", prompt=asked[0].prompt)]
    found = judge().judge(asked)
    for one, (in_order, swapped) in zip(
        asked, zip(found[::2], found[1::2], strict=True), strict=True
    ):
        better = mean_logp(one.prompt, one.answer_a) > mean_logp(one.prompt, one.answer_b)
        assert in_order.outcome == swapped.outcome == ("a" if better else "b")
        assert (in_order.swapped, swapped.swapped) == (False, True)
    assert {one.outcome for one in found} == {"a", "b"}


def test_equal_answers_and_small_differences_tie() -> None:
    one, other = WORLD.pairs[0], WORLD.pairs[1]
    same = contest(one.chosen, one.chosen, prompt=one.prompt)
    near = contest(one.chosen, other.chosen, prompt=one.prompt)
    difference = abs(mean_logp(near.prompt, near.answer_a) - mean_logp(near.prompt, near.answer_b))
    assert {one.outcome for one in judge().judge([same])} == {"tie"}
    assert {one.outcome for one in judge(tie_nats=2 * difference).judge([near])} == {"tie"}
    assert "tie" not in {one.outcome for one in judge(tie_nats=difference / 2).judge([near])}


def test_empty_answers_are_judged_and_too_long_ones_counted() -> None:
    one = WORLD.pairs[0]
    empty = contest(" ", one.chosen, prompt=one.prompt)
    assert count(judge().judge([empty])).parsed == 2
    long = contest(one.chosen, " well" * 60, name="long", prompt=one.prompt)
    found = judge(context=32).judge([empty, long])
    assert [one.outcome for one in found[2:]] == ["failed", "failed"]
    assert found[2].said == TOO_LONG and count(found).parsed == 2


def test_a_reference_without_numbers_judges_nothing() -> None:
    broken = build_tiny(TinyConfig(), TOKENIZER)
    with torch.no_grad():
        broken.get_output_embeddings().weight.fill_(float("nan"))
    encoder = Encoder(TOKENIZER, 64, "drop")
    found = LogProbJudge("broken", ResponseLogits(broken), encoder).judge(
        [contest(WORLD.pairs[0].chosen, " well", prompt=WORLD.pairs[0].prompt)]
    )
    assert {one.outcome for one in found} == {"failed"} and "nan" in found[0].said


@pytest.mark.parametrize("batch", [1, 4])
def test_the_batch_does_not_decide(batch: int) -> None:
    asked = [
        contest(pair.chosen, str(pair.rejected), name=pair.id, prompt=pair.prompt)
        for pair in WORLD.pairs
    ]
    encoder = Encoder(TOKENIZER, 64, "drop")
    other = LogProbJudge("reference", ResponseLogits(MODEL), encoder, batch=batch)
    assert other.judge(asked) == judge().judge(asked)
