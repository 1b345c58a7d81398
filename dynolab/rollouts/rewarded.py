"""From sampled responses and their rewards to the groups that objectives read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dynolab.data.groups import Completion, Group
from dynolab.objectives.advantages import group_advantages
from dynolab.rollouts.generator import Sampled


def rewarded_group(
    name: str, samples: Sequence[Sampled], rewards: Sequence[float], *, scale_by_std: bool = True
) -> Group:
    """A prompt's responses, each token pushed with its response's advantage.

    `old` stays out: the policy at hand is the one that sampled. For later updates on the same
    responses take its log-probabilities from the training forward, not from the sampling.

    **Raises:** `ConfigError` for fewer than two responses.
    """
    advantages = group_advantages(torch.tensor(rewards), scale_by_std=scale_by_std)
    return Group(
        name,
        tuple(
            Completion(one.encoded, advantage.expand(one.encoded.response_length))
            for one, advantage in zip(samples, advantages, strict=True)
        ),
    )
