"""How a push on a sampled token changes the entropy of its own position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.likelihood.token_logps import log_softmax_at


@dataclass(frozen=True)
class EntropyScores:
    """One number for every response token y; π is the policy at the batch's temperature.

    - `entropy`: `H = −Σ_v π_v log π_v` in nats.
    - `score`: `S_y = π_y (log π_y + H)`. As `∂H/∂z_v = −S_v`, raising the logit of y alone lowers
      the entropy where S_y > 0: y is then likelier than `e^−H`.
    - `mean_score`: `Σ_v π_v S_v`.
    """

    entropy: Float[Tensor, " tokens"]
    score: Float[Tensor, " tokens"]
    mean_score: Float[Tensor, " tokens"]

    @property
    def fall(self) -> Float[Tensor, " tokens"]:
        """`S_y − Σ_v π_v S_v`: how much H falls by a push `e_y − π` on the logits, per its size."""
        return self.score - self.mean_score


def entropy_scores(logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch) -> EntropyScores:
    """The entropy and the scores of every response token (Wang et al., arXiv 2602.03392, §3)."""
    logps = log_softmax_at(logits, batch)
    policy = logps.exp()
    # An impossible token adds nothing to the entropy: 0 · −inf counts as 0.
    logps = logps.clamp_min(torch.finfo(logps.dtype).min)
    entropy = -(policy * logps).sum(-1)
    scores = policy * (logps + entropy[:, None])
    return EntropyScores(
        entropy,
        scores.gather(-1, batch.token[:, None]).squeeze(-1),
        (policy * scores).sum(-1),
    )
