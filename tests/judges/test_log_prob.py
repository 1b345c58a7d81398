"""The judge by a reference model's log-probability, against sums written out."""

from __future__ import annotations

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.judges import count
from dynolab.judges.log_prob import TOO_LONG, LogProbJudge
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.judges import Contest
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
