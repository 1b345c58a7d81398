"""What a ledger accounts for: weighted sums of answers' log-probabilities."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoded
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.map.terms import TokenTerms, token_terms


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
    """Functionals and their gradients at some weights, one row each.

    `terms`: A and what belongs to it of single answers, by the number of their functional.
    """

    values: Float[Tensor, " functionals"]
    gradients: Float[Tensor, "functionals parameters"]
    terms: Mapping[int, TokenTerms] = field(default_factory=dict)


def slopes_of(
    functionals: Sequence[Functional],
    gradients: GroupedGradients,
    at: Weights,
    *,
    batch_tokens: int | None = None,
    terms_of: Collection[int] = (),
    into: Float[Tensor, "functionals parameters"] | None = None,
) -> Slopes:
    """One forward and one backward of every term.

    **Arguments:**

    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.
    - `terms_of`: numbers of the functionals of one answer whose tokens' terms are wanted.
    - `into`: what the gradients are added to, by default zeros.

    Where the likeliest token changes between two steps q has a kink; the gradient is that of the
    token that is likeliest now.
    """
    policy = gradients.policy
    listed = [(number, term) for number, q in enumerate(functionals) for term in q.terms]
    values = torch.zeros(len(functionals), dtype=torch.float64, device=policy.device)
    rows = gradients.rows(at, len(functionals)) if into is None else into
    found: dict[int, TokenTerms] = {}
    sequences = [term.sequence for _, term in listed]
    for members in by_length(sequences, batch_tokens or policy.batch_tokens):
        numbers, terms = zip(*(listed[member] for member in sorted(members)), strict=True)
        batch = policy.batch([term.sequence for term in terms])
        group = torch.tensor(numbers, device=policy.device)

        def weighted(
            logits: Tensor,
            batch: TokenBatch = batch,
            terms: Sequence[Term] = terms,
            numbers: Sequence[int] = numbers,
        ) -> Tensor:
            for place in (place for place, number in enumerate(numbers) if number in terms_of):
                own = batch.sequence == place
                found[numbers[place]] = token_terms(logits.detach()[own], batch.token[own])
            likeliest = torch.tensor([term.likeliest for term in terms], device=batch.token.device)
            weights = torch.tensor([term.weight for term in terms], dtype=logits.dtype)
            best = logits.detach().argmax(-1)
            tokens = torch.where(likeliest[batch.sequence], best, batch.token)
            logps = View(tokens[:, None]).logps(logits).squeeze(-1)
            return weights.to(logits.device)[batch.sequence] * logps

        each = gradients.add(at, batch, weighted, group, into=rows)
        values.index_add_(0, group[batch.sequence], each.double())
    return Slopes(values, rows, found)
