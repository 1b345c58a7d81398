"""A rollout: the policy answers prompts, and rewards compare the answers within their group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.encode import EncodedExample
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals, with_tokens
from dynolab.data.packing import plan_rows, share_prompts
from dynolab.data.rows import PromptRow
from dynolab.likelihood.entropy_scores import EntropyScores, entropy_scores
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps, top_tokens
from dynolab.objectives import group_advantages, rewrite_advantages
from dynolab.objectives.advantage_rules import CLIPPING, clip_advantages
from dynolab.objectives.grpo import GRPOConfig, SimKOConfig, anchors
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.rollouts.generator import Generator, SampleConfig, Sampled, generate_on_ranks
from dynolab.rollouts.passes import SAMPLES_PER_K, pass_at_k, pass_levels
from dynolab.rollouts.rewards import Rewards, reward_metrics
from dynolab.training.reference import score_responses, score_sides
from dynolab.training.step_batch import ScoredRow

Prompt = tuple[PromptRow, tuple[int, ...]]
"""A row with its prompt's tokens."""


@dataclass(frozen=True)
class Answers:
    """The policy's answers to one prompt, and the reward of each."""

    id: str
    sampled: tuple[Sampled, ...]
    rewards: tuple[float, ...]
    prompt: str = ""

    @property
    def differ(self) -> bool:
        """Whether the rewards are not all equal."""
        return min(self.rewards) < max(self.rewards)


@dataclass(frozen=True)
class Scorer:
    """The sampling policy and the reference, if needed; both with full weights."""

    policy: ResponseLogits
    reference: ResponseLogits | None
    pad_id: int
    batch: int
    """Sequences per forward."""


def answer_prompts(
    generator: Generator,
    rewards: Rewards,
    prompts: Sequence[Prompt],
    config: SampleConfig,
    *,
    samples: int,
    step: int,
) -> list[Answers]:
    """Samples and rewards answers to every prompt; the ranks split the work, and all return all."""
    sampled = generate_on_ranks(
        generator, [tokens for _, tokens in prompts], config, samples=samples, step=step
    )
    rows = [row for row, _ in prompts]
    mine = distributed.deal(list(zip(rows, sampled, strict=True)))
    rewarded = []
    for row, responses in mine:
        texts = [sample.text for sample in responses]
        rewarded.append(rewards(row.prompt, texts, row))
    values = distributed.gather_dealt(rewarded)
    answers = []
    for row, responses, numbers in zip(rows, sampled, values, strict=True):
        answers.append(Answers(row.id, tuple(responses), tuple(numbers), row.prompt))
    return answers


def answer_metrics(answers: Sequence[Answers], right_from: float) -> dict[str, float]:
    """Rewards, pass@k, length in tokens, share that ended, and the policy's entropy per token.

    pass@1 is the accuracy; `solved` is the share of prompts with a right answer. The entropy is
    estimated by the mean of −log π over sampled tokens.
    """
    samples = list(chain.from_iterable(group.sampled for group in answers))
    size = len(answers[0].rewards)
    right = [sum(reward >= right_from for reward in group.rewards) for group in answers]
    metrics = reward_metrics([group.rewards for group in answers])
    for k in pass_levels(max(1, size // SAMPLES_PER_K)):
        passed = sum(pass_at_k(size, count, k) for count in right)
        metrics[f"rollout/pass_at_{k}"] = passed / len(right)
    tokens = sum(len(sample.logps) for sample in samples)
    logp = sum(sum(sample.logps) for sample in samples)
    return metrics | {
        "rollout/solved": sum(map(bool, right)) / len(right),
        "rollout/length": sum(len(sample.response) for sample in samples) / len(samples),
        "rollout/finished": sum(sample.finished for sample in samples) / len(samples),
        "rollout/entropy": -logp / tokens,
    }


def ranked_pairs(answers: Sequence[Answers]) -> list[EncodedExample]:
    """Pairs of an answer with the highest reward, chosen, and one with the lowest, rejected.

    Their `wins` are estimated over the prompt's answers (`win_rates`).
    """
    pairs = []
    for answer in answers:
        rewards, wins = answer.rewards, win_rates(answer.rewards)
        best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
        chosen, rejected = answer.sampled[best].encoded, answer.sampled[worst].encoded
        pairs.append(EncodedExample(answer.id, chosen, rejected, (wins[best], wins[worst])))
    return pairs


def win_rates(rewards: Sequence[float]) -> list[float]:
    """`P(y ≻ π | x)` of each answer: `(1/K) Σ_k P(y ≻ y_k)` over all K answers, including itself.

    Wu et al., arXiv 2405.00675, algorithm 1. The higher reward wins; a tie counts one half.
    """
    rates = []
    for reward in rewards:
        wins = sum((reward > other) + 0.5 * (reward == other) for other in rewards)
        rates.append(wins / len(rewards))
    return rates


def score_pairs(
    pairs: Sequence[EncodedExample], scorer: Scorer, sides: Sequence[int]
) -> list[ScoredRow]:
    """Adds the reference's log-probabilities to the pairs, if there is a reference."""
    if scorer.reference is None:
        return [ScoredRow(pair) for pair in pairs]
    size = max(1, scorer.batch // len(sides))
    scored = score_sides(scorer.reference, pairs, sides, scorer.pad_id, size)
    return [ScoredRow(pair, logps) for pair, logps in zip(pairs, scored, strict=True)]


@torch.no_grad()
def make_groups(
    answers: Sequence[Answers],
    scorer: Scorer,
    config: ClippedConfig,
    *,
    temperature: float,
    right_from: float,
    seed: int,
) -> list[Group]:
    """Builds groups with advantages and with log-probabilities under sampling policy and reference.

    **Arguments:**

    - `right_from`: lowest reward of a right completion, for rules that rewrite advantages.
    - `seed`: of rules that draw random tokens.

    Rules that compare a token with all of a batch compare it with all of these answers'.
    """
    samples = chain.from_iterable(group.sampled for group in answers)
    sequences = [sample.encoded for sample in samples]
    ranks = config.ranks if isinstance(config, SimKOConfig) else 0
    clips = config.advantage_rule.name in CLIPPING
    read = partial(_own_and_top, ranks=ranks, with_scores=clips)
    scores = iter(
        score_responses(
            scorer.policy, sequences, scorer.pad_id, scorer.batch, read, temperature=temperature
        )
    )
    references: Iterator[Tensor | None] = repeat(None)
    if scorer.reference is not None:
        references = iter(
            score_responses(
                scorer.reference, sequences, scorer.pad_id, scorer.batch, temperature=temperature
            )
        )
    groups, tables = [], list[Tensor]()
    for answer in answers:
        scored = [(next(scores), next(references)) for _ in answer.sampled]
        rewards = torch.tensor(answer.rewards, dtype=torch.float64)
        if config.kl_in_reward:
            drift = []
            for logps, reference in scored:
                if reference is not None:
                    drift.append(float((logps[:, 0] - reference).sum()))
            rewards -= config.kl_in_reward * torch.tensor(drift)
        if config.overlong_buffer and config.max_tokens:
            # Yu et al., arXiv 2503.14476, eq. 13.
            lengths = torch.tensor([len(sampled.response) for sampled in answer.sampled])
            beyond = lengths - (config.max_tokens - config.overlong_buffer)
            rewards -= (beyond / config.overlong_buffer).clamp(0, 1)
        advantages = group_advantages(
            rewards, scale_by_std=config.scale_by_std, leave_one_out=config.leave_one_out
        ).float()
        completions = []
        for sampled, advantage, columns in zip(answer.sampled, advantages, scored, strict=True):
            completions.append(_completion(sampled, advantage, *columns, ranks))
            tables.append(columns[0])
        groups.append(Group(answer.id, tuple(completions)))
    if not groups:
        return groups
    table = torch.cat(tables)
    advantage = torch.cat([part.advantage for group in groups for part in group.completions])
    if isinstance(config, GRPOConfig) and config.kl_cov is not None:
        groups = with_tokens(groups, "anchor", anchors(config.kl_cov, advantage, table[:, 0]))
    if clips:
        entropies = EntropyScores(*table[:, -3:].float().unbind(1))
        rewritten = clip_advantages(
            config.advantage_rule, advantage, table[:, 0].float(), entropies, seed=seed
        )
        return with_tokens(groups, "advantage", rewritten)
    if config.advantage_rule.name == "none":
        return groups
    # The ranks split the groups, and all return all.
    mine = []
    for number in distributed.deal(range(len(groups))):
        right = [reward >= right_from for reward in answers[number].rewards]
        group = _rewrite(groups[number], right, scorer, config, temperature, seed + number)
        mine.append(group)
    return distributed.gather_dealt(mine)


def _own_and_top(
    logits: Float[Tensor, "tokens vocabulary"],
    batch: TokenBatch,
    *,
    ranks: int,
    with_scores: bool = False,
) -> Float[Tensor, "tokens columns"]:
    """log π of the token; with `ranks`, also entropy and the likeliest tokens' ids and log π.

    The `EntropyScores` are the last three columns, with `with_scores`.
    """
    columns = [token_logps(logits, batch)[:, None]]
    if ranks:
        top = top_tokens(logits, batch, ranks)
        # In float64, which holds an id and a float32 exactly.
        columns += [top.entropy[:, None].double(), top.token, top.logp]
    if with_scores:
        scores = entropy_scores(logits, batch)
        columns.append(torch.stack([scores.entropy, scores.score, scores.mean_score], dim=1))
    return torch.cat(columns, dim=1)


def _completion(
    sampled: Sampled, advantage: Tensor, scores: Tensor, reference: Tensor | None, ranks: int
) -> Completion:
    """Builds a completion from the columns of `_own_and_top`."""
    old = scores[:, 0].float()
    top = None
    if ranks:
        entropy, token, logp = (
            scores[:, 1],
            scores[:, 2 : 2 + ranks],
            scores[:, 2 + ranks :][:, :ranks],
        )
        top = TopTokens(token.long(), logp.float(), entropy.float())
    return Completion(sampled.encoded, advantage.expand(len(old)), old, reference, top)


def _rewrite(
    group: Group,
    right: Sequence[bool],
    scorer: Scorer,
    config: ClippedConfig,
    temperature: float,
    seed: int,
) -> Group:
    collated = collate_groups(
        [group], scorer.pad_id, count_group_totals([group]), temperature=temperature
    )
    sequences = [completion.encoded for completion in group.completions]
    device = distributed.device()
    batch = share_prompts(collated, plan_rows(sequences, packing_width(scorer.policy))).to(device)
    hidden = scorer.policy.hidden(batch)
    advantages = rewrite_advantages(
        config.advantage_rule,
        batch,
        torch.tensor(right, device=device),
        scorer.policy.head(hidden),
        hidden,
        seed=seed,
    ).cpu()
    return with_tokens([group], "advantage", advantages)[0]
