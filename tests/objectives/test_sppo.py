"""SPPO against a plain writing of its iteration: Wu et al., arXiv 2405.00675, algorithm 1."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate_examples, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.errors import ConfigError
from dynolab.objectives import SPPO, SPPOConfig
from dynolab.rollouts.generator import Sampled
from dynolab.training.rollout import Answers, ranked_pairs, win_rates

LENGTHS = [(3, 5), (1, 4), (6, 2), (2, 2)]
WINS = [(0.9, 0.2), (0.75, 0.75), (0.5, 0.0), (0.6, 0.45)]
SIDES = (CHOSEN, REJECTED)
BETA = 0.05


def examples() -> list[EncodedExample]:
    return [
        EncodedExample(str(n), *(Encoded(tuple(range(2 + k)), 2) for k in lengths), wins=wins)
        for n, (lengths, wins) in enumerate(zip(LENGTHS, WINS, strict=True))
    ]


def scored(rows: list[EncodedExample]) -> tuple[TokenBatch, torch.Tensor]:
    batch = collate_examples(rows, 0, SIDES, count_totals(rows, SIDES))
    generator = torch.Generator().manual_seed(0)
    logps, reference = -3 * torch.rand(
        2, len(batch.token), generator=generator, dtype=torch.float64
    )
    return replace(batch, reference=reference), logps.requires_grad_()


def plain_loss(
    batch: TokenBatch, logps: torch.Tensor, wins: list[tuple[float, float]]
) -> torch.Tensor:
    """`Σ (log π_θ(y)/π_t(y) − η(P(y ≻ π_t) − 1/2))²` over both answers, mean over pairs."""
    eta, total, start = 1 / BETA, torch.zeros((), dtype=torch.float64), 0
    for lengths, both in zip(LENGTHS, wins, strict=True):
        for length, win in zip(lengths, both, strict=True):
            own = slice(start, start + length)
            ratio = logps[own].sum() - batch.reference[own].sum()
            total = total + (ratio - eta * (win - 0.5)) ** 2
            start += length
    return total / len(LENGTHS)


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_loss_and_force_are_the_plain_writing_s(labels):
    batch, logps = scored(examples())
    wins = WINS if labels == "soft" else [(1.0, 0.0)] * len(WINS)
    oracle = plain_loss(batch, logps, wins)
    (gradient,) = torch.autograd.grad(oracle, logps)
    objective = SPPO(SPPOConfig(beta=BETA, labels=labels))
    torch.testing.assert_close(objective.loss(logps, batch), oracle, rtol=1e-12, atol=0)
    rates = objective.token_weights(logps.detach(), batch)
    torch.testing.assert_close(rates, -gradient, rtol=1e-12, atol=1e-14)


def test_an_answer_that_wins_as_often_as_it_loses_is_kept_where_it_was():
    batch, logps = scored([replace(example, wins=(0.5, 0.5)) for example in examples()])
    objective = SPPO(SPPOConfig(beta=BETA, labels="soft"))
    rates = objective.token_weights(batch.reference, batch)
    assert not rates.any()
    assert objective.token_weights(logps.detach(), batch).abs().max() > 0


def test_the_logged_reward_is_the_log_ratio_s_whatever_the_target():
    batch, logps = scored(examples())
    hard, soft = (
        SPPO(SPPOConfig(beta=BETA, labels=which)).metrics(logps, batch)
        for which in ("hard", "soft")
    )
    for name in ("train/margin", "train/reward_chosen", "train/reward_rejected"):
        assert hard[name] == soft[name]
    assert hard["train/dynamic_learning_rate"] != soft["train/dynamic_learning_rate"]


def test_soft_labels_that_are_not_there_are_refused():
    rows = [*examples()[1:], replace(examples()[0], wins=None)]
    batch, logps = scored(rows)
    with pytest.raises(ConfigError, match=r"objective\.labels = 'soft'.*labels: hard"):
        SPPO(SPPOConfig(labels="soft")).loss(logps, batch)


def test_a_config_with_hard_labels_is_written_as_before_there_was_a_choice():
    assert SPPOConfig().model_dump() == {"name": "sppo", "beta": 0.001}
    assert SPPOConfig(labels="soft").model_dump()["labels"] == "soft"


@pytest.mark.parametrize("rewards", [[1, 0, 0, 1, 0.5], [2.0, 2.0], [0.3, -1, 4], [7.0]])
def test_win_rates_are_means_over_all_comparisons(rewards):
    counted = [0.0] * len(rewards)
    for (n, own), other in product(enumerate(rewards), rewards):
        counted[n] += 1 if own > other else 0.5 if own == other else 0
    assert win_rates(rewards) == pytest.approx([one / len(rewards) for one in counted])
    assert sum(win_rates(rewards)) == pytest.approx(len(rewards) / 2)


def test_a_group_s_pair_is_its_best_and_worst_answer_with_what_they_win():
    sampled = tuple(Sampled(Encoded((1, 2, 10 + n), 2), "", True, (-1.0,)) for n in range(4))
    (pair,) = ranked_pairs([Answers("q", sampled, (0.5, 2.0, 0.5, -1.0))])
    assert (pair.chosen.ids[-1], pair.rejected.ids[-1]) == (11, 13)
    assert pair.wins == (0.875, 0.125)
