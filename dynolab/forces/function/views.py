"""What is observed at every response position: the answer's own token, others, or all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.forces.function.precision import log_softmax, logps_of


@dataclass(frozen=True)
class View:
    """The tokens whose `log π(v | x, y_<l)` is observed at each position of a response.

    `tokens` is the same before and after a change: the likeliest token is chosen once, from given
    logits, and then held fixed. None means the whole vocabulary.
    """

    tokens: Int[Tensor, "tokens k"] | None

    @classmethod
    def realised(cls, batch: TokenBatch) -> View:
        """The answer's own token at every position, k = 1."""
        return cls(batch.token[:, None])

    @classmethod
    def argmax(cls, logits: Float[Tensor, "tokens vocabulary"]) -> View:
        """The likeliest token at every position, k = 1."""
        return cls(logits.detach().topk(1, dim=-1).indices)

    @classmethod
    def vocabulary(cls) -> View:
        """Every token of the vocabulary: k = V."""
        return cls(None)

    def beside(self, other: View) -> View:
        """Both views' tokens, this one's first."""
        if self.tokens is None or other.tokens is None:
            raise ConfigError("view", "vocabulary", "it holds every token already; use it alone")
        return View(torch.cat([self.tokens, other.tokens], dim=-1))

    def logps(self, logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, "tokens k"]:
        """`log π` of the observed tokens, in nats."""
        if self.tokens is not None and self.tokens.shape[-1] == 1:
            return logps_of(logits, self.tokens)
        logps = log_softmax(logits)
        return logps if self.tokens is None else logps.gather(-1, self.tokens)

    def changes(
        self,
        logits: Float[Tensor, "tokens vocabulary"],
        moved: Float[Tensor, "... tokens vocabulary"],
    ) -> Float[Tensor, "... tokens k"]:
        """`A dz = dz − (π·dz) 1` of the observed tokens, in nats, for logits that move by dz.

        O(V): the V×V matrix A = I − 1πᵀ is never formed. As A1 = 0, dz is taken relative to one
        token: the observed one, or the likeliest if there are several. The other entries then
        keep their digits as π nears one.
        """
        several = self.tokens is None or self.tokens.shape[-1] > 1
        anchor = logits.argmax(-1, keepdim=True) if several else self.tokens
        assert anchor is not None
        relative = moved - moved.gather(-1, anchor.expand(*moved.shape[:-1], 1))
        mean = torch.einsum("tv,...tv->...t", torch.softmax(logits, dim=-1), relative)
        if self.tokens is not None:
            relative = relative.gather(-1, self.tokens.expand(*moved.shape[:-1], -1))
        return relative - mean[..., None]
