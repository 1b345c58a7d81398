"""A rollout: the policy answers prompts, rewards judge, answers are compared within their group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.encode import EncodedExample
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals
from dynolab.data.packing import plan_rows, share_prompts
from dynolab.data.rows import PromptRow
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps, top_tokens
from dynolab.objectives import group_advantages, rewrite_advantages
from dynolab.objectives.clipping import ClippedConfig
from dynolab.objectives.simko import SimKOConfig
from dynolab.rollouts.generator import Generator, SampleConfig, Sampled, generate_on_ranks
from dynolab.rollouts.passes import SAMPLES_PER_K, pass_at_k, pass_levels
from dynolab.rollouts.rewards import Rewards, reward_metrics
from dynolab.training.reference import score_responses, score_sides
from dynolab.training.step_batch import ScoredRow

Prompt = tuple[PromptRow, tuple[int, ...]]
"""A row with its prompt's tokens."""


@dataclass(frozen=True)
class Answers:
    """What the policy said to one prompt, and the reward of each."""

    id: str
    sampled: tuple[Sampled, ...]
    rewards: tuple[float, ...]

    @property
    def differ(self) -> bool:
        """Whether there is anything to compare."""
        return min(self.rewards) < max(self.rewards)


@dataclass(frozen=True)
class Scorer:
    """The policy that sampled and the reference, where one is needed; weights whole."""

    policy: ResponseLogits
    reference: ResponseLogits | None
    pad_id: int
    batch: int
    """Sequences of one forward."""


def answer_prompts(
    generator: Generator,
    rewards: Rewards,
    prompts: Sequence[Prompt],
    config: SampleConfig,
    *,
    samples: int,
    step: int,
) -> list[Answers]:
    """Samples to every prompt with their rewards, on every rank; each rank makes its share."""
    sampled = generate_on_ranks(
        generator, [tokens for _, tokens in prompts], config, samples=samples, step=step
    )
    rows = [row for row, _ in prompts]
    judged = distributed.deal(list(zip(rows, sampled, strict=True)))
    given = distributed.gather_dealt([_judge(rewards, row, drawn) for row, drawn in judged])
    return [
        Answers(row.id, tuple(drawn), tuple(numbers))
        for row, drawn, numbers in zip(rows, sampled, given, strict=True)
    ]


def _judge(rewards: Rewards, row: PromptRow, sampled: Sequence[Sampled]) -> list[float]:
    try:
        return rewards(row.prompt, [sample.text for sample in sampled], row)
    except Exception as error:
        error.add_note(f"while rewarding the completions of prompt {row.id}")
        raise


def answer_metrics(answers: Sequence[Answers], right_from: float) -> dict[str, float]:
    """Rewards, pass@k, length in tokens, share that ended, and the policy's entropy per token.

    pass@1 is the accuracy; `solved` the share of prompts with a right answer. The entropy is the
    mean of −log π over sampled tokens, whose expectation it is.
    """
    every = [sample for group in answers for sample in group.sampled]
    size = len(answers[0].rewards)
    right = [sum(reward >= right_from for reward in group.rewards) for group in answers]
    return {
        **reward_metrics([group.rewards for group in answers]),
        **{
            f"rollout/pass_at_{k}": sum(pass_at_k(size, count, k) for count in right) / len(right)
            for k in pass_levels(max(1, size // SAMPLES_PER_K))
        },
        "rollout/solved": sum(map(bool, right)) / len(right),
        "rollout/length": sum(len(sample.response) for sample in every) / len(every),
        "rollout/finished": sum(sample.finished for sample in every) / len(every),
        "rollout/entropy": -sum(sum(sample.logps) for sample in every)
        / sum(len(sample.logps) for sample in every),
    }


def ranked_pairs(answers: Sequence[Answers]) -> list[EncodedExample]:
    """Of each prompt's answers one of the highest reward, and one of the lowest as rejected.

    Their `wins` are estimated over the prompt's answers (`win_rates`).
    """
    pairs = []
    for answer in answers:
        best, worst = (answer.rewards.index(which(answer.rewards)) for which in (max, min))
        wins = win_rates(answer.rewards)
        chosen, rejected = (answer.sampled[number].encoded for number in (best, worst))
        pairs.append(EncodedExample(answer.id, chosen, rejected, (wins[best], wins[worst])))
    return pairs


def win_rates(rewards: Sequence[float]) -> list[float]:
    """`P(y ≻ π | x)` of each answer: `(1/K) Σ_k P(y ≻ y_k)` over all K, itself among them.

    Wu et al., arXiv 2405.00675, algorithm 1. The answer with the higher reward is preferred, and
    either of two with the same half of the time.
    """
    return [
        sum((reward > other) + 0.5 * (reward == other) for other in rewards) / len(rewards)
        for reward in rewards
    ]


def score_pairs(
    pairs: Sequence[EncodedExample], scorer: Scorer, sides: Sequence[int]
) -> list[ScoredRow]:
    """The pairs with the reference's log-probabilities, where there is one."""
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
    """Groups with advantages, and log-probabilities under the policy that sampled and reference.

    **Arguments:**

    - `right_from`: reward from which a completion counts as right where advantages are rewritten.
    - `seed`: of a rule that draws tokens.
    """
    sequences = [sample.encoded for group in answers for sample in group.sampled]
    ranks = config.ranks if isinstance(config, SimKOConfig) else 0
    read = partial(_own_and_top, ranks=ranks)
    seen = iter(
        score_responses(
            scorer.policy, sequences, scorer.pad_id, scorer.batch, read, temperature=temperature
        )
    )
    known: Iterator[Tensor | None] = repeat(None)
    if scorer.reference is not None:
        known = iter(
            score_responses(
                scorer.reference, sequences, scorer.pad_id, scorer.batch, temperature=temperature
            )
        )
    groups = []
    for answer in answers:
        rewards = torch.tensor(answer.rewards, dtype=torch.float64)
        pushes = group_advantages(rewards, scale_by_std=config.scale_by_std).float()
        groups.append(
            Group(
                answer.id,
                tuple(
                    _completion(sampled, push, next(seen), next(known), ranks)
                    for sampled, push in zip(answer.sampled, pushes, strict=True)
                ),
            )
        )
    if config.advantage_rule.name == "none":
        return groups
    right = [[reward >= right_from for reward in answer.rewards] for answer in answers]
    return _rewritten(groups, right, scorer, config, temperature, seed)


def _own_and_top(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch, *, ranks: int
) -> Float[Tensor, "tokens columns"]:
    """log π of the token, and the likeliest tokens' ids and log π with the entropy, if wanted."""
    own = token_logps(logits, batch)[:, None]
    if not ranks:
        return own
    top = top_tokens(logits, batch, ranks)
    # In float64, which holds an id and a float32 exactly.
    return torch.cat([own.double(), top.entropy[:, None], top.token, top.logp], dim=1)


def _completion(
    sampled: Sampled, push: Tensor, seen: Tensor, reference: Tensor | None, ranks: int
) -> Completion:
    """A completion with what `_own_and_top` has read."""
    old = seen[:, 0].float()
    top = None
    if ranks:
        entropy, token, logp = seen[:, 1], seen[:, 2 : 2 + ranks], seen[:, 2 + ranks :]
        top = TopTokens(token.long(), logp.float(), entropy.float())
    return Completion(sampled.encoded, push.expand(len(old)), old, reference, top)


def _rewritten(
    groups: Sequence[Group],
    right: Sequence[Sequence[bool]],
    scorer: Scorer,
    config: ClippedConfig,
    temperature: float,
    seed: int,
) -> list[Group]:
    """The groups with their advantages after the config's rule; each rank rewrites its share."""
    mine = distributed.deal(range(len(groups)))
    return distributed.gather_dealt(
        [
            _rewrite(groups[number], right[number], scorer, config, temperature, seed + number)
            for number in mine
        ]
    )


def _rewrite(
    group: Group,
    right: Sequence[bool],
    scorer: Scorer,
    config: ClippedConfig,
    temperature: float,
    seed: int,
) -> Group:
    bare = collate_groups(
        [group], scorer.pad_id, count_group_totals([group]), temperature=temperature
    )
    sequences = [completion.encoded for completion in group.completions]
    device = distributed.device()
    batch = share_prompts(bare, plan_rows(sequences, packing_width(scorer.policy))).to(device)
    hidden = scorer.policy.hidden(batch)
    pushes = rewrite_advantages(
        config.advantage_rule,
        batch,
        torch.tensor(right, device=device),
        scorer.policy.head(hidden),
        hidden,
        seed=seed,
    ).cpu()
    parts = pushes.split([sequence.response_length for sequence in sequences])
    return Group(
        group.id,
        tuple(
            Completion(
                completion.encoded,
                part.clone(),
                completion.old,
                completion.reference,
                completion.top,
            )
            for completion, part in zip(group.completions, parts, strict=True)
        ),
    )
