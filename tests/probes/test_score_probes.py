from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import ProbeScorer, mean_by_kind, score_probes
from dynolab.results.study import Score
from models.tiny import TinyConfig, build_tiny
from tests.training.ranks_played import play

WORLD = build_world(WorldConfig(entities=20, train_pairs=6, heldout_pairs=4, corpus_rows=8))


@pytest.fixture(scope="module")
def rows() -> list[ProbeRow]:
    """Prompts and answers of many lengths."""
    return [
        row.model_copy(
            update={
                "prompt": " ".join([row.prompt] * (1 + n % 3)),
                "response": " " + " ".join(row.response.split()[: 1 + n % 10]),
            }
        )
        for n, row in enumerate(WORLD.probes)
    ]


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(WORLD.tokenizer(), 64, "error")


@pytest.fixture(scope="module")
def model(encoder: Encoder) -> ResponseLogits:
    tiny = build_tiny(TinyConfig(width=32, layers=2), encoder.tokenizer)
    with torch.no_grad():
        for weights in tiny.parameters():
            weights.mul_(4)  # sharper than at the start of training, so that errors show
    return ResponseLogits(tiny)


def test_batches_equal_one_by_one(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    alone = score_probes(model, rows, encoder, batch_tokens=1)
    assert [(score.pair_id, score.kind) for score in alone] == [
        (row.pair_id, row.kind) for row in rows
    ]
    for batch_tokens in (100, 500, 100_000):
        together = score_probes(model, rows, encoder, batch_tokens=batch_tokens)
        for score, other in zip(alone, together, strict=True):
            assert score.model_dump() == pytest.approx(other.model_dump(), abs=1e-4)


@torch.no_grad()
def by_hand(model: ResponseLogits, row: ProbeRow, encoder: Encoder) -> tuple[Tensor, Tensor]:
    """log π of the answer's tokens and of the whole vocabulary, by the model's own forward."""
    tokenizer = encoder.tokenizer
    prompt = tokenizer(row.prompt)["input_ids"]
    answer = tokenizer(row.response, add_special_tokens=False)["input_ids"]
    answer = torch.tensor([*answer, tokenizer.eos_token_id])
    logits = model.model(torch.cat([torch.tensor(prompt), answer])[None]).logits[0].double()
    logp = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return answer, logp


@pytest.mark.parametrize("batch_tokens", [1, 300, 100_000])
@pytest.mark.parametrize("adapted", [False, True])
def test_every_kind_s_scores_equal_a_forward_by_hand(
    rows: list[ProbeRow], encoder: Encoder, model: ResponseLogits, adapted: bool, batch_tokens: int
) -> None:
    if adapted:
        model = ResponseLogits(adapters(model.model))
    scores = score_probes(model, rows, encoder, batch_tokens=batch_tokens, per_token=True)
    for row, score in list(zip(rows, scores, strict=True))[::3]:
        answer, logp = by_hand(model, row, encoder)
        own = logp.gather(-1, answer[:, None])[:, 0]
        top, pi, at = logp.max(-1), logp.exp(), torch.arange(len(answer))
        ranks = 1 + (logp > own[:, None]).sum(-1)
        outside = pi.clone()
        outside[at, top.indices] = 0
        square = logp.shape[1] * pi.square().sum(-1) + logp.shape[1] - 2
        entropy = -(pi * logp).sum(-1)
        assert score.token_scores is not None
        assert score.token_scores.model_dump() == {
            "token": tuple(answer.tolist()),
            "argmax": tuple(top.indices.tolist()),
            "rank": tuple(ranks.tolist()),
            "logp": pytest.approx(own.tolist(), abs=1e-4),
            "argmax_logp": pytest.approx(top.values.tolist(), abs=1e-4),
            "outside_logmass": pytest.approx(outside.sum(-1).log().tolist(), abs=1e-4),
            "entropy": pytest.approx(entropy.tolist(), abs=1e-4),
            "energy": pytest.approx((1 - own.exp()).tolist(), abs=1e-4),
            "a_frobenius": pytest.approx(square.sqrt().tolist(), abs=1e-4),
        }
        same = (top.indices == answer).double().mean()
        expected = {
            "tokens": len(answer),
            "logp": pytest.approx(float(own.sum()), abs=1e-4),
            "argmax_logp": pytest.approx(float(top.values.sum()), abs=1e-4),
            "outside_mass": pytest.approx(float(outside.sum(-1).mean()), abs=1e-5),
            "argmax_tokens_equal": pytest.approx(float(same)),
            "entropy": pytest.approx(float(entropy.mean()), abs=1e-4),
            "energy": pytest.approx(float((1 - own.exp()).mean()), abs=1e-5),
            "a_frobenius": pytest.approx(float(square.mean().sqrt()), abs=1e-4),
            "log_rank": pytest.approx(float(ranks.double().log().mean())),
        }
        assert {name: getattr(score, name) for name in expected} == expected


def adapters(model: nn.Module) -> nn.Module:
    """The model with adapters that change what it says."""
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(copy.deepcopy(model), config).eval()


def test_tokens_stay_out_of_files_unless_asked_for(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    for per_token in (False, True):
        (score,) = score_probes(model, rows[:1], encoder, batch_tokens=9, per_token=per_token)
        assert ("token_scores" in score.line()) is per_token
        assert Score.model_validate_json(score.line()) == score


def test_a_scorer_follows_the_model_that_it_was_made_for(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    other = ResponseLogits(copy.deepcopy(model.model))
    scorer = ProbeScorer(other, rows, encoder, batch_tokens=1000)
    before = scorer.score()
    with torch.no_grad():
        other.model.get_output_embeddings().weight.mul_(2)
    assert scorer.score() == score_probes(other, rows, encoder, batch_tokens=1000) != before


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_the_ranks_shares_join_to_the_whole(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder, world: int
) -> None:
    whole = score_probes(model, rows, encoder, batch_tokens=500)
    joined = [
        score
        for rank in range(world)
        for score in score_probes(model, rows, encoder, batch_tokens=500, share=(rank, world))
    ]
    assert [score.kind for score in joined] == [score.kind for score in whole]
    logps = [score.logp for score in whole]
    assert [score.logp for score in joined] == pytest.approx(logps, abs=1e-4)


@contextmanager
def noted_calls(model: nn.Module) -> Iterator[list[str]]:
    """The names of the modules that run, in order."""
    calls: list[str] = []

    def note(name: str, *_: object) -> None:
        calls.append(name)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(note, name)).remove)
        yield calls


@pytest.mark.parametrize("world", [3, 7, 130])
def test_ranks_in_step_run_the_same_modules_in_one_order(
    model: ResponseLogits,
    rows: list[ProbeRow],
    encoder: Encoder,
    world: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def scorer(rank: int, gather: Callable[[int], list[int]]) -> ProbeScorer:
        play(monkeypatch, rank, world, gather)
        share = rank, world
        return ProbeScorer(model, rows, encoder, batch_tokens=60, share=share, in_step=True)

    for rank in range(world):
        scorer(rank, lambda mine: [counts.append(mine) or mine])
    assert len(set(counts)) > 1  # left alone, they would run unlike numbers
    joined, runs = [], []
    for rank in range(world):
        with noted_calls(model.model) as calls:
            joined += scorer(rank, lambda mine: counts).score()
        runs.append(calls)
    assert all(calls == runs[0] for calls in runs) and runs[0]
    whole = score_probes(model, rows, encoder, batch_tokens=60)
    assert [(score.pair_id, score.kind) for score in joined] == [
        (score.pair_id, score.kind) for score in whole
    ]
    logps = [score.logp for score in whole]
    assert [score.logp for score in joined] == pytest.approx(logps, abs=1e-4)


def test_no_forward_exceeds_the_bound_on_padded_tokens(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    batches: list[TokenBatch] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    score_probes(model, rows, encoder, batch_tokens=200)
    hook.remove()
    assert sum(len(batch.side) for batch in batches) == len(rows)
    for batch in batches:
        assert batch.input_ids.numel() <= 200 or len(batch.input_ids) == 1
    assert len(batches) < len(rows) / 2


def test_responses_to_one_prompt_share_its_forward(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    batches: list[TokenBatch] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0]))
    score_probes(model, rows, encoder, batch_tokens=100_000)
    hook.remove()
    begun = sum(int((b.position_ids == 0)[b.attention_mask.bool()].sum()) for b in batches)
    assert len({row.prompt for row in rows}) <= begun < len(rows) / 2


@pytest.mark.parametrize("training", [True, False])
def test_mode_gradients_and_counts_are_left_alone(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder, training: bool
) -> None:
    model.train(training)
    score_probes(model, rows, encoder, batch_tokens=1000)
    assert model.training is training
    assert all(weights.grad is None for weights in model.parameters())
    assert encoder.counts.kept == 0
    model.eval()


def test_rows_beyond_the_context_have_no_score(model: ResponseLogits, rows: list[ProbeRow]) -> None:
    short = Encoder(WORLD.tokenizer(), 16, "drop")
    scores = score_probes(model, rows, short, batch_tokens=1000)
    fitting = [row for row in rows if short.response("x", row.prompt, row.response) is not None]
    assert 0 < len(scores) < len(rows)
    assert [score.kind for score in scores] == [row.kind for row in fitting]


def test_means_by_kind_are_over_training_pairs(
    model: ResponseLogits, rows: list[ProbeRow], encoder: Encoder
) -> None:
    scores = score_probes(model, rows, encoder, batch_tokens=1000)
    means = mean_by_kind(scores)
    mine = [s for s in scores if s.kind == "chosen" and s.split == "train"]
    assert Counter(s.split for s in mine) == {"train": 6}
    assert means["probe/chosen/logp"] == pytest.approx(sum(s.logp for s in mine) / 6)
    assert means["squeeze/gap"] == pytest.approx(sum(s.argmax_logp - s.logp for s in mine) / 6)
    assert 0 < means["probe/argmax/outside_mass"] < 1


def test_a_tokenizer_that_is_not_the_model_s_is_refused(
    rows: list[ProbeRow], encoder: Encoder
) -> None:
    other = build_world(WorldConfig(entities=12, train_pairs=2, heldout_pairs=2, corpus_rows=8))
    model = ResponseLogits(build_tiny(TinyConfig(width=8, heads=1), other.tokenizer()))
    with pytest.raises(ConfigError, match=r"tokenizer = 'token \d+': the model's embedding has"):
        score_probes(model, rows, encoder, batch_tokens=500)
