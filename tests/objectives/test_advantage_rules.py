"""Rules that rewrite advantages, against plain loops and autograd of the output head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.likelihood.entropy_scores import entropy_scores
from dynolab.likelihood.token_logps import token_logps
from dynolab.objectives import AdvantageRuleConfig, rewrite_advantages
from dynolab.objectives.advantage_rules import influence
from tests.objectives.sampled import VOCABULARY, batch_of

FEATURES = 7


def scene() -> tuple[TokenBatch, Tensor, Tensor, Tensor]:
    """A batch of groups, which completions are right, logits and hidden states."""
    batch, logits = batch_of()
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(len(batch.token), FEATURES, generator=generator, dtype=torch.float64)
    first = batch.sequence_length.cumsum(0) - batch.sequence_length
    return batch, batch.advantage[first] > 0, logits.detach(), hidden + 0.5


def plain_influence(logits, hidden, token, right, columns) -> Tensor:
    """Σ over right tokens of ⟨g, g'⟩⟨h, h'⟩, pair by pair."""
    pulls = []
    for n in range(len(token)):
        one_hot = torch.eye(VOCABULARY, dtype=torch.float64)[token[n]]
        pulls.append((one_hot - torch.softmax(logits[n], -1))[columns])
    return torch.stack(
        [
            sum(
                (pulls[j] @ pulls[k]) * (hidden[j] @ hidden[k])
                for j in range(len(token))
                if right[j]
            )
            for k in range(len(token))
        ]
    )


@pytest.mark.parametrize("present_only", [True, False])
def test_influence_is_the_sum_over_pairs(present_only):
    batch, correct, logits, hidden = scene()
    right = correct[batch.sequence]
    columns = batch.token.unique() if present_only else torch.arange(VOCABULARY)
    slow = plain_influence(logits, hidden, batch.token, right, columns)
    fast = influence(logits, hidden, batch.token, right, present_only=present_only)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)


def test_influence_is_the_head_s_share_of_the_kernel():
    """⟨∇_W log π_k, ∇_W Σ_right log π_j⟩ by autograd, W the output head."""
    batch, correct, _, hidden = scene()
    right = correct[batch.sequence]
    generator = torch.Generator().manual_seed(6)
    head = torch.randn(VOCABULARY, FEATURES, generator=generator, dtype=torch.float64)
    head.requires_grad_()
    logits = hidden @ head.T
    logps = logits.log_softmax(-1).gather(-1, batch.token[:, None]).squeeze(1)
    (together,) = torch.autograd.grad(logps[right].sum(), head, retain_graph=True)
    one_by_one = [torch.autograd.grad(logp, head, retain_graph=True)[0] for logp in logps]
    truth = torch.stack([(gradient * together).sum() for gradient in one_by_one])
    fast = influence(logits.detach(), hidden, batch.token, right, present_only=False)
    torch.testing.assert_close(fast, truth, rtol=1e-9, atol=1e-11)


def test_nthr_scales_the_tokens_of_wrong_answers_above_the_threshold_and_no_others():
    batch, correct, logits, hidden = scene()
    got = rewrite_advantages(AdvantageRuleConfig(name="nthr"), batch, correct, logits, hidden)
    expected, touched = batch.advantage.clone(), 0
    for group in range(len(batch.ids)):
        rows = torch.nonzero(batch.example == group).squeeze(1).tolist()
        rate = sum(bool(correct[row]) for row in rows) / len(rows)
        mine = [n for n in range(len(batch.token)) if int(batch.sequence[n]) in rows]
        strength = plain_influence(
            logits[mine],
            hidden[mine],
            batch.token[mine],
            correct[batch.sequence[mine]],
            batch.token[mine].unique(),
        )
        by_row = {
            row: torch.stack(
                [strength[i] for i, n in enumerate(mine) if int(batch.sequence[n]) == row]
            ).mean()
            for row in rows
        }
        bound = min(by_row[row] for row in rows if correct[row])
        for i, n in enumerate(mine):
            if not correct[batch.sequence[n]] and strength[i] > bound:
                expected[n] *= 2 * abs(0.5 - rate)
                touched += 1
    torch.testing.assert_close(got, expected)
    wrong = int((~correct[batch.sequence]).sum())
    assert 0 < touched < wrong


@pytest.mark.parametrize("name", ["nthr", "random_tokens"])
@pytest.mark.parametrize("verdict", [True, False])
def test_groups_all_right_or_all_wrong_stay_as_they_are(name, verdict):
    batch, correct, logits, hidden = scene()
    same = torch.full_like(correct, verdict)
    rule = AdvantageRuleConfig(name=name, factor=0.0)
    got = rewrite_advantages(rule, batch, same, logits, hidden)
    assert torch.equal(got, batch.advantage)


def test_random_tokens_scales_as_many_per_answer_as_nthr_but_others():
    batch, correct, logits, hidden = scene()
    aimed, drawn, again = (
        rewrite_advantages(
            AdvantageRuleConfig(name=name, factor=0.0), batch, correct, logits, hidden, seed=seed
        )
        for name, seed in (("nthr", 0), ("random_tokens", 1), ("random_tokens", 1))
    )
    assert torch.equal(drawn, again) and not torch.equal(drawn, aimed)
    counts = [batch.sequence_sum((one == 0).double()) for one in (aimed, drawn)]
    assert torch.equal(*counts)
    assert float(counts[0].sum()) > 0


def test_positives_only_leaves_no_negative_push():
    batch, correct, logits, hidden = scene()
    got = rewrite_advantages(
        AdvantageRuleConfig(name="positives_only"), batch, correct, logits, hidden
    )
    assert torch.equal(got, batch.advantage.clamp(min=0))
    same = rewrite_advantages(AdvantageRuleConfig(), batch, correct, logits, hidden)
    assert torch.equal(same, batch.advantage)


def test_a_group_s_advantages_do_not_depend_on_the_other_groups():
    batch, correct, logits, hidden = scene()
    rule = AdvantageRuleConfig(name="nthr")
    whole = rewrite_advantages(rule, batch, correct, logits, hidden)
    for group in range(len(batch.ids)):
        kept = torch.where(batch.example == group, correct, torch.zeros_like(correct))
        alone = rewrite_advantages(rule, batch, kept, logits, hidden)
        mine = batch.example[batch.sequence] == group
        assert torch.equal(alone[mine], whole[mine])


def test_a_batch_without_advantages_is_refused():
    batch, correct, logits, hidden = scene()
    with pytest.raises(ConfigError, match="advantage"):
        rewrite_advantages(
            AdvantageRuleConfig(name="nthr"),
            replace(batch, advantage=None),
            correct,
            logits,
            hidden,
        )


@pytest.mark.parametrize("p", [0.3, -0.3])
def test_thr_scales_by_the_sign_of_what_a_token_does_to_the_right_answers(p):
    batch, correct, logits, hidden = scene()
    rule = AdvantageRuleConfig(name="thr", p=p, threshold=0.5)
    got = rewrite_advantages(rule, batch, correct, logits, hidden)
    factors = set()
    for group in range(len(batch.ids)):
        rows = batch.example == group
        tokens = torch.nonzero(rows[batch.sequence]).squeeze(1)
        sequence, token = batch.sequence[tokens], batch.token[tokens]
        right = correct[sequence]
        strength = plain_influence(logits[tokens], hidden[tokens], token, right, token.unique())
        means = [strength[sequence == row].mean() for row in sequence[right].unique()]
        for place, number in enumerate(tokens.tolist()):
            lifts = (strength[place] > 0) == right[place]
            factor = 1 + p if lifts else 1 - p
            if abs(strength[place]) <= 0.5 * min(means):
                factor = 0.0
            assert got[number] == pytest.approx(factor * batch.advantage[number])
            factors.add(factor)
    assert factors == {0.0, 1 + p, 1 - p}


@pytest.mark.parametrize("name", ["clip_b", "clip_v"])
def test_clips_drop_unlikely_tokens_of_wrong_answers_by_their_score(name):
    batch, correct, logits, hidden = scene()
    rule = AdvantageRuleConfig(name=name, deviations=0.3)
    got = rewrite_advantages(rule, batch, correct, logits, hidden)
    policy = torch.softmax(logits, -1)
    scores = policy * (policy.log() - (policy * policy.log()).sum(-1, keepdim=True))
    score = scores[torch.arange(len(scores)), batch.token]
    deviation = score - (score.mean() if name == "clip_b" else (policy * scores).sum(-1))
    dropped = deviation < -0.3 * deviation.std(correction=0)
    dropped &= batch.advantage < 0
    assert 0 < int(dropped.sum()) < int((batch.advantage < 0).sum())
    torch.testing.assert_close(got, torch.where(dropped, 0.0, batch.advantage))


def test_clip_cov_drops_a_share_of_the_tokens_within_its_bounds():
    batch, correct, logits, hidden = scene()
    logps = token_logps(logits, batch)
    products = (batch.advantage - batch.advantage.mean()) * (logps - logps.mean())
    within = (products > 0.5) & (products < 2)
    rule = AdvantageRuleConfig(name="clip_cov", share=0.05, covariance=(0.5, 2.0))
    first, again, *others = (
        rewrite_advantages(rule, batch, correct, logits, hidden, seed=seed)
        for seed in (0, 0, 1, 2, 3)
    )
    dropped = (first == 0) & (batch.advantage != 0)
    assert int(dropped.sum()) == int(0.05 * len(logps)) < int(within.sum())
    assert bool(within[dropped].all()) and torch.equal(first, again)
    assert any(not torch.equal(first, other) for other in others)


def test_the_score_is_the_entropy_s_slope_and_its_fall_that_of_a_push():
    batch, _, logits, _ = scene()
    batch = replace(batch, temperature=0.7)
    warm = (logits / 0.7).requires_grad_()
    entropy = torch.distributions.Categorical(logits=warm).entropy()
    (slope,) = torch.autograd.grad(entropy.sum(), warm)
    places, policy = torch.arange(len(warm)), torch.softmax(warm.detach(), -1)
    scores = entropy_scores(logits, batch)
    torch.testing.assert_close(scores.entropy, entropy.detach())
    torch.testing.assert_close(scores.score, -slope[places, batch.token])
    torch.testing.assert_close(scores.mean_score, -(policy * slope).sum(-1))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "nthr", "p": 0.5}, "p"),
        ({"name": "thr", "share": 0.1}, "share"),
        ({"name": "clip_cov", "covariance": (2.0, 1.0)}, "covariance"),
    ],
)
def test_settings_that_a_rule_does_not_read_are_refused(settings, field):
    with pytest.raises(ConfigError, match=field):
        AdvantageRuleConfig(**settings)
