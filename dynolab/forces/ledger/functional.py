"""What a ledger accounts for: weighted sums of answers' log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoded
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View


@dataclass(frozen=True)
class Term:
    """`weight · Σ_l log π(y_l | x, y_<l)` of one answer.

    `likeliest`: at every position of the answer the token that the policy at hand finds likeliest
    takes the place of the answer's own (y*, greedy under teacher forcing).
    """

    sequence: Encoded
    weight: float = 1.0
    likeliest: bool = False


@dataclass(frozen=True)
class Functional:
    """`q(θ)`: the sum of its terms, in nats."""

    name: str
    terms: tuple[Term, ...]

    @classmethod
    def mean(
        cls, name: str, sequences: Sequence[Encoded], *, likeliest: bool = False
    ) -> Functional:
        """The mean log-probability of some answers."""
        weight = 1 / len(sequences)
        return cls(name, tuple(Term(sequence, weight, likeliest) for sequence in sequences))


@dataclass(frozen=True)
class Slopes:
    """Functionals and their gradients at some weights, one row each."""

    values: Float[Tensor, " functionals"]
    gradients: Float[Tensor, "functionals parameters"]


def slopes_of(
    functionals: Sequence[Functional],
    policy: PolicyFunction,
    at: Weights,
    *,
    batch_tokens: int = 16_384,
) -> Slopes:
    """One forward and one backward of every term.

    **Arguments:**

    - `at`: the weights; gradients are taken with respect to these, in their order, flattened.
    - `batch_tokens`: bound of sequences × padded length of one forward.

    Where the likeliest token changes between two steps q has a kink; the gradient is that of the
    token that is likeliest now.
    """
    leaves = {name: w.requires_grad_() for name, w in policy.cast(at).items()}
    values, gradients = [], []
    for functional in functionals:
        value = torch.zeros((), dtype=torch.float64, device=policy.device)
        gradient = torch.zeros_like(flatten(leaves))
        sequences = [term.sequence for term in functional.terms]
        for members in by_length(sequences, batch_tokens):
            part = _sum([functional.terms[member] for member in members], policy, leaves)
            gradient += flatten_gradient(part, leaves)
            value += part.detach().double()
        values.append(value)
        gradients.append(gradient)
    return Slopes(torch.stack(values), torch.stack(gradients))


def _sum(terms: Sequence[Term], policy: PolicyFunction, at: Weights) -> Float[Tensor, ""]:
    batch, _ = policy.batch([term.sequence for term in terms])
    logits = policy.logits(at, batch)
    weights = torch.tensor([term.weight for term in terms], dtype=policy.dtype)
    logps = View(_tokens(terms, batch, logits)).logps(logits).squeeze(-1)
    return (weights.to(policy.device)[batch.sequence] * logps).sum()


def _tokens(terms: Sequence[Term], batch: TokenBatch, logits: Tensor) -> Tensor:
    likeliest = torch.tensor([term.likeliest for term in terms], device=batch.token.device)
    if not likeliest.any():
        return batch.token[:, None]
    best = View.argmax(logits).tokens
    return torch.where(likeliest[batch.sequence][:, None], best, batch.token[:, None])


def flatten(weights: Weights) -> Float[Tensor, " parameters"]:
    """All tensors as one vector, one after the other."""
    return torch.cat([w.detach().flatten() for w in weights.values()])


def unflatten(vector: Float[Tensor, " parameters"], like: Weights) -> dict[str, Tensor]:
    """The vector's parts with the names and shapes of some weights."""
    parts = vector.split([w.numel() for w in like.values()])
    return {name: part.view_as(w) for (name, w), part in zip(like.items(), parts, strict=True)}


def flatten_gradient(value: Float[Tensor, ""], leaves: Weights) -> Float[Tensor, " parameters"]:
    """The gradient of a value with respect to leaves, as one vector; zero where none leads."""
    gradients = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
    return torch.cat([g.flatten() for g in gradients])
