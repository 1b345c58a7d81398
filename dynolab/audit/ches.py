"""CHES: how alike a pair's answers look to the last layer."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def ches(
    chosen: Float[Tensor, "chosen features"], rejected: Float[Tensor, "rejected features"]
) -> Float[Tensor, ""]:
    """`⟨Σ h⁺, Σ h⁻⟩ − ‖Σ h⁺‖²`, h the last hidden states that predict a response's tokens.

    Centred hidden embedding similarity (Razin et al., *Unintentional Unalignment*, arXiv
    2410.08847, def. 2): the higher, the more the chosen answer is expected to fall. The
    pair's exact force on its own chosen answer reduces to it if only the last layer moves and all
    predictions are taken to be alike.
    """
    own = chosen.sum(0)
    return own @ rejected.sum(0) - own @ own


def ches_per_token(
    chosen: Float[Tensor, "chosen features"], rejected: Float[Tensor, "rejected features"]
) -> Float[Tensor, ""]:
    """Length-normalised CHES: means in place of sums, so that long answers do not dominate."""
    own = chosen.mean(0)
    return own @ rejected.mean(0) - own @ own
