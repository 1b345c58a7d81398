"""What a functional reads of the logits at an answer's tokens: one number a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.forces.function.views import logps_of

Logits = Float[Tensor, "tokens vocabulary"]
TokenIds = Int[Tensor, " tokens"]
Values = Float[Tensor, " tokens"]

Measure = Callable[[Logits, TokenIds], Values]
"""Of the logits that predict an answer's tokens, and these tokens; differentiable by the logits."""


def log_likelihood(logits: Logits, tokens: TokenIds) -> Values:
    """`log π(y_l | x, y_<l)` of the answer's own tokens, in nats."""
    return logps_of(logits, tokens[:, None])[:, 0]


def likeliest(logits: Logits, tokens: TokenIds) -> Values:
    """`log π` of the token that these logits make likeliest: y*, in nats.

    Where the likeliest token changes the value has a kink; the derivative is that of the token that
    is likeliest now.
    """
    return logps_of(logits, logits.detach().argmax(-1, keepdim=True))[:, 0]


def entropy(logits: Logits, tokens: TokenIds) -> Values:
    """`H = −Σ_v π_v log π_v` of the next token, in nats.

    Its derivative by the logits is `−π_v (log π_v + H)`.
    """
    logps = torch.log_softmax(logits, -1)
    return -(logps.exp() * logps).sum(-1)


@dataclass(frozen=True, eq=False)
class DivergenceFrom:
    """`KL(π‖π_ref) = Σ_v π_v (log π_v − log π_ref,v)` of the next token, in nats.

    Its derivative by the logits is `π_v (log π_v − log π_ref,v − KL)`.

    **Arguments:** `reference`: log π_ref at each of the answer's tokens; may be on the host.
    """

    reference: Float[Tensor, "tokens vocabulary"]

    def __call__(self, logits: Logits, tokens: TokenIds) -> Values:
        """The divergences."""
        logps = torch.log_softmax(logits, -1)
        return (logps.exp() * (logps - self.reference.to(logps))).sum(-1)
