"""The dose of the push on rejected answers that first-order forces choose at every step.

The step's first-order effect on the mean log π of a sample of other chosen answers is
`η Σ_l d_l c_l s_l`: c_l are the objective's token weights, `s_l = ∇log π_l · P q` with q the
gradient of that mean and P the optimizer's metric, and d_l is a dose, 1 on chosen tokens. Doses of
rejected tokens are the largest push that leaves this sum at zero or above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

Per = Literal["batch", "pair", "token"]


class DesignedDoseConfig(BaseModel):
    """Settings of the dose that forces choose."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    per: Per = Field(
        "batch", description="What has its own dose: the step's batch, each pair, or each token."
    )
    sample: int = Field(
        8, ge=1, description="Chosen answers outside the batch, drawn anew each step, to protect."
    )


def largest_doses(
    gain: float, harms: Float[Tensor, " groups"], pushes: Float[Tensor, " groups"]
) -> Float[Tensor, " groups"]:
    """`argmax Σ_g d_g push_g` over `0 ≤ d ≤ 1` with `gain − Σ_g d_g harm_g ≥ 0`.

    A fractional knapsack, which is solved exactly by taking groups in the order of harm per push
    (Dantzig, *Operations Research* 5, 1957); a group that harms nothing has dose 1. With one group
    of positive harm d = gain/harm, within [0, 1]. Where even d = 0 leaves the sum negative, groups
    that harm have dose 0.

    **Arguments:** `gain`: what chosen answers do to the sample, to first order; `harms`: what each
    group takes from that at dose 1; `pushes`: at least 0.
    """
    harmful = harms > 0
    room = gain - float(harms[~harmful].sum())
    doses = torch.ones_like(harms)
    order = (harms / pushes).masked_fill(~harmful, -torch.inf).argsort(stable=True)
    order = order[int((~harmful).sum()) :]
    own = harms[order]
    before = own.cumsum(0) - own
    doses[order] = ((room - before) / own).clamp(0, 1)
    return doses


@dataclass(frozen=True)
class TokenEffects:
    """What each token of some pairs does to the sample at dose 1, `c_l s_l`, and its push `|c_l|`.

    `pair` is the token's pair, counted from 0.
    """

    effect: Float[Tensor, " tokens"]
    push: Float[Tensor, " tokens"]
    rejected: Bool[Tensor, " tokens"]
    pair: Int[Tensor, " tokens"]


def designed_doses(parts: Sequence[TokenEffects], per: Per) -> list[Float[Tensor, " _"]]:
    """The dose of every token of a step: of rejected ones `largest_doses`, of chosen ones 1.

    **Arguments:** `parts`: the step's tokens; every part counts its own pairs.
    """
    effect = torch.cat([part.effect for part in parts]).double()
    push = torch.cat([part.push for part in parts]).double()
    rejected = torch.cat([part.rejected for part in parts])
    group = torch.zeros(int(rejected.sum()), dtype=torch.long)
    if per == "token":
        group = torch.arange(len(group))
    if per == "pair":
        whose = torch.repeat_interleave(torch.tensor([len(part.effect) for part in parts]))
        pair = torch.stack([whose, torch.cat([part.pair for part in parts])])[:, rejected]
        group = pair.unique(dim=1, return_inverse=True)[1]
    zeros = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=torch.float64)
    doses = largest_doses(
        float(effect[~rejected].sum()),
        zeros.index_add(0, group, -effect[rejected]),
        zeros.index_add(0, group, push[rejected]),
    )
    every = torch.ones_like(effect)
    every[rejected] = doses[group]
    return list(every.split([len(part.effect) for part in parts]))
