"""Weighted sums of answers' log-probabilities, and their slopes by the weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

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
    terms_by_number: dict[int, TokenTerms] = {}
    sequences = [term.sequence for _, term in listed]
    for members in by_length(sequences, batch_tokens or policy.batch_tokens):
        # `by_length` mixes functionals; in rising order the sequences of each stand side by side,
        # as `GroupedGradients.add` needs them.
        numbers, terms = zip(*(listed[member] for member in sorted(members)), strict=True)
        batch = policy.batch([term.sequence for term in terms])
        group = torch.tensor(numbers, device=policy.device)
        # Where in the batch the answer of a functional is whose terms are wanted; it has one.
        places = {number: place for place, number in enumerate(numbers) if number in terms_of}
        token_values = partial(_token_values, terms, batch, places, terms_by_number)
        weighted_logps = gradients.add(at, batch, token_values, group, into=rows)
        values.index_add_(0, group[batch.sequence], weighted_logps.double())
    return Slopes(values, rows, terms_by_number)


def _token_values(
    terms: Sequence[Term],
    batch: TokenBatch,
    places: Mapping[int, int],
    terms_by_number: dict[int, TokenTerms],
    logits: Float[Tensor, "tokens vocabulary"],
) -> Float[Tensor, " tokens"]:
    """`weight · log π` of every token of the terms' answers.

    **Arguments:**

    - `places`: by the number of a functional whose token terms are wanted, its answer's place in
      the batch.
    - `terms_by_number`: these terms are put into it, as the logits are there only now.
    """
    constant = logits.detach()
    for number, place in places.items():
        of_term = batch.sequence == place
        terms_by_number[number] = token_terms(constant[of_term], batch.token[of_term])
    likeliest = torch.tensor([term.likeliest for term in terms], device=batch.token.device)
    tokens = torch.where(likeliest[batch.sequence], constant.argmax(-1), batch.token)
    logps = View(tokens[:, None]).logps(logits).squeeze(-1)
    weights = torch.tensor([term.weight for term in terms], dtype=logits.dtype)
    return weights.to(logits.device)[batch.sequence] * logps
