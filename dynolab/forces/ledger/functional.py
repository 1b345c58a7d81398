"""Weighted sums of what is measured at answers' tokens, and their slopes by the weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoded
from dynolab.data.rows import ProbeRow
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.measures import Measure, log_likelihood
from dynolab.forces.map.terms import TokenTerms, token_terms
from dynolab.results.ledger import FunctionalRow


@dataclass(frozen=True)
class Term:
    """`weight · Σ_l m(z_l, y_l)` of one answer: by default `m = log π(y_l | x, y_<l)`.

    **Arguments:** `measure`: m, of the logits z_l that predict token y_l.
    """

    sequence: Encoded
    weight: float = 1.0
    measure: Measure = log_likelihood


@dataclass(frozen=True)
class Functional:
    """`q(θ)`: the sum of its terms, in nats."""

    name: str
    terms: tuple[Term, ...]

    @classmethod
    def mean(
        cls, name: str, sequences: Sequence[Encoded], measure: Measure = log_likelihood
    ) -> Functional:
        """The mean over some answers of their sums."""
        weight = 1 / len(sequences)
        return cls(name, tuple(Term(sequence, weight, measure) for sequence in sequences))


WatchedFunctional = tuple[FunctionalRow, Functional]
"""A functional, and its row in the ledger's table of functionals."""

Answers = Sequence[tuple[ProbeRow, Encoded]]
"""Watched rows and their tokens."""


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
    dealt: bool = False,
) -> Slopes:
    """One forward and one backward of every term.

    **Arguments:**

    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.
    - `terms_of`: numbers of the functionals of one answer whose tokens' terms are wanted.
    - `into`: what the gradients are added to, by default zeros.
    - `dealt`: each rank takes a share of the terms, in as many passes as the others. Values, and
      gradients of `GroupedGradients`, are then this rank's part of the sums over ranks.
    """
    policy = gradients.policy
    listed = [(number, term) for number, q in enumerate(functionals) for term in q.terms]
    values = torch.zeros(len(functionals), dtype=torch.float64, device=policy.device)
    rows = gradients.rows(at, len(functionals)) if into is None else into
    terms_by_number: dict[int, TokenTerms] = {}
    sequences = [term.sequence for _, term in listed]
    for members in dealt_by_length(sequences, batch_tokens or policy.batch_tokens, dealt=dealt):
        # `by_length` mixes functionals; in rising order the sequences of each stand side by side,
        # as `GroupedGradients.add` needs them.
        taken = [listed[member] for member in sorted(members)]
        if not taken:  # the pass that other ranks make now; any answer does, and adds nothing
            number, term = listed[0]
            taken = [(number, replace(term, weight=0.0))]
        numbers, terms = zip(*taken, strict=True)
        batch = policy.batch([term.sequence for term in terms])
        group = torch.tensor(numbers, device=policy.device)
        # Where in the batch the answer of a functional is whose terms are wanted; it has one.
        places = {number: place for place, number in enumerate(numbers) if number in terms_of}
        token_values = partial(_token_values, terms, batch, places, terms_by_number)
        weighted_logps = gradients.add(at, batch, token_values, group, into=rows)
        values.index_add_(0, group[batch.sequence], weighted_logps.double())
    return Slopes(values, rows, terms_by_number)


def dealt_by_length(
    sequences: Sequence[Encoded], batch_tokens: int, *, dealt: bool
) -> Iterator[Sequence[int]]:
    """Numbers of the sequences of each pass (`by_length`); `dealt`: of this rank's.

    All ranks then make equally many, of which some may be empty.
    """
    if not dealt:
        yield from by_length(sequences, batch_tokens)
        return
    # As many sequences of a batch as fit a pass go to each rank.
    for members in by_length(sequences, batch_tokens * distributed.world_size()):
        yield distributed.deal(members)


def _token_values(
    terms: Sequence[Term],
    batch: TokenBatch,
    places: Mapping[int, int],
    terms_by_number: dict[int, TokenTerms],
    logits: Float[Tensor, "tokens vocabulary"],
) -> Float[Tensor, " tokens"]:
    """`weight · m` of every token of the terms' answers.

    **Arguments:**

    - `places`: by the number of a functional whose token terms are wanted, its answer's place in
      the batch.
    - `terms_by_number`: these terms are put into it, as the logits are there only now.
    """
    for number, place in places.items():
        of_term = batch.sequence == place
        terms_by_number[number] = token_terms(logits.detach()[of_term], batch.token[of_term])
    weights = logits.new_tensor([term.weight for term in terms])[batch.sequence]
    return weights * measured_tokens([term.measure for term in terms], batch, logits)


def measured_tokens(
    measures: Sequence[Measure], batch: TokenBatch, logits: Float[Tensor, "tokens vocabulary"]
) -> Float[Tensor, " tokens"]:
    """Every token's value by the measure of its answer, one measure an answer of the batch."""
    if len(set(measures)) == 1:
        return measures[0](logits, batch.token)
    values = torch.zeros_like(logits[:, 0])
    for measure in dict.fromkeys(measures):
        answers = [place for place, other in enumerate(measures) if other == measure]
        tokens = torch.isin(batch.sequence, torch.tensor(answers, device=logits.device))
        measured = measure(logits[tokens], batch.token[tokens])
        values = values.masked_scatter(tokens, measured)
    return values
