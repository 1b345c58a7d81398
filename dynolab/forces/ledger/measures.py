"""What a functional reads of the logits at an answer's tokens: one number a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.forces.function.views import View, logps_of

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


def logit_slopes(measure: Measure, logits: Logits, tokens: TokenIds) -> Logits:
    """`∂m/∂z` at every token: of each token's own value by the logits that predict it.

    It sums to 0 over the vocabulary, as a measure reads the logits through their softmax alone.
    """
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (slopes,) = torch.autograd.grad(measure(leaf, tokens).sum(), leaf)
    return slopes


@dataclass(frozen=True)
class MeasuredView(View):
    """A view of some tokens, the realised one first, with a further column for each measure."""

    measures: Sequence[Measure] = ()

    def logps(self, logits: Logits) -> Float[Tensor, "tokens k"]:
        """`log π` of the view's tokens, then the measures, in nats."""
        realised = self.realised_tokens()
        values = [measure(logits, realised)[:, None] for measure in self.measures]
        return torch.cat([super().logps(logits), *values], -1)

    def changes(
        self, logits: Logits, moved: Float[Tensor, "... tokens vocabulary"]
    ) -> Float[Tensor, "... tokens k"]:
        """`A dz` of the view's tokens, then `∂m/∂z · dz` of the measures, in nats."""
        columns = [super().changes(logits, moved)]
        for measure in self.measures:
            slopes = logit_slopes(measure, logits, self.realised_tokens())
            columns.append(torch.einsum("tv,...tv->...t", slopes, moved)[..., None])
        return torch.cat(columns, -1)

    def realised_tokens(self) -> TokenIds:
        """The answer's own tokens."""
        assert self.tokens is not None
        return self.tokens[:, 0]
