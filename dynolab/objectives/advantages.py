"""Advantages of a group's completions from their rewards."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dynolab.errors import ConfigError


def group_advantages(
    rewards: Float[Tensor, completions], *, scale_by_std: bool = True
) -> Float[Tensor, completions]:
    """`Â_i = (r_i − mean r)/(std r + 1e-4)` over one group, std with Bessel's correction.

    Shao et al., arXiv 2402.03300, §4.1.2; without the division it is Dr. GRPO's
    (arXiv 2503.20783). A group whose rewards are all equal has no advantages.

    **Raises:** `ConfigError` for a group of fewer than two completions.
    """
    if len(rewards) < 2:
        raise ConfigError(
            "group size", len(rewards), "an advantage compares completions; sample two or more"
        )
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + 1e-4) if scale_by_std else centred
