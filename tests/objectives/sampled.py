"""Groups of random completions: lengths, ratios and advantages of every kind a step can meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.encode import Encoded
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals
from dynolab.likelihood.token_logps import target_logps, top_tokens
from dynolab.objectives import group_advantages

VOCABULARY = 20
RANKS = 3


def group(number: int) -> Group:
    generator = torch.Generator().manual_seed(number)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCABULARY, (count,), generator=generator).tolist())

    prompt, size = ids(2 + number % 2), 3 + number % 3
    rewards = torch.rand(size, generator=generator, dtype=torch.float64).round(decimals=1)
    completions = []
    for one in range(size):
        length = 1 + int(torch.randint(0, 6, (1,), generator=generator))
        completions.append(
            Completion(
                Encoded(prompt + ids(length), len(prompt)),
                group_advantages(rewards)[one].expand(length),
                reference=-3 * torch.rand(length, generator=generator, dtype=torch.float64),
            )
        )
    return Group(str(number), tuple(completions))


GROUPS = [group(number) for number in range(4)]


def random_logits(batch: TokenBatch, seed: int, scale: float = 2.0) -> Tensor:
    """Logits of every position, the same whatever else is in the batch."""
    rows = []
    for sequence, position, token in zip(batch.sequence, batch.position, batch.token, strict=True):
        example = batch.ids[int(batch.example[sequence])]
        key = hash((seed, int(example), tuple(batch.input_ids[sequence, : position + 1].tolist())))
        generator = torch.Generator().manual_seed(key % 2**31 + int(token))
        rows.append(torch.randn(VOCABULARY, generator=generator, dtype=torch.float64))
    return scale * torch.stack(rows)


def batch_of(
    groups: Sequence[Group] = GROUPS, *, temperature: float = 1.0, drift: float = 0.3
) -> tuple[TokenBatch, Tensor]:
    """A batch and the policy's logits, which have drifted from those that sampled.

    `drift` is the standard deviation of the logits' change; 0.3 clips a good part of the tokens.
    """
    bare = collate_groups(groups, 0, count_group_totals(GROUPS), temperature=temperature)
    sampled = random_logits(bare, 1)
    top = top_tokens(sampled, bare, RANKS)
    batch = replace(bare, top=top)
    old = target_logps(sampled, batch)
    batch = replace(batch, old=old[:, 0], top=TopTokens(top.token, old[:, 1:], entropy=top.entropy))
    return batch, (sampled + drift * random_logits(bare, 2, 1.0)).requires_grad_()
