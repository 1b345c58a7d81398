"""An unbiased estimate of a force map from random directions, where the exact one is too dear."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import by_length
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.map.gram import Kernel
from dynolab.forces.map.problem import Updating, pose
from dynolab.forces.map.weighted import WeightedResponse, scores_along
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded

FEWEST = 2  # a standard error needs two


@dataclass(frozen=True)
class Estimate:
    """A matrix of forces in nats, with the standard error of every entry."""

    value: Float[Tensor, "rows columns"]
    standard_error: Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Sketch:
    """`F = η ⟨∇ s_m, P ∇ s_l⟩` from `x_{j,m} = ⟨∇ s_m, P^{1/2} d_j⟩` and `y_{j,l}` alike.

    The d_j are independent with identity covariance, so `η x_{j,m} y_{j,l}` has mean F, and its
    mean over j has a standard error that follows from its spread. Relative to an entry of cosine c
    that is about `√((1 + c²)/k)/|c|` with k directions: gradients of single tokens are almost
    orthogonal, so that a sketch resolves sums over answers long before it resolves tokens.
    """

    observed: Float[Tensor, "directions observed"]
    updating: Float[Tensor, "directions updating"]
    rate: float
    observed_lengths: tuple[int, ...]
    labels: tuple[Updating, ...]

    def tokens(self) -> Estimate:
        """Of every observed and updating token."""
        return _products(self.observed, self.updating, self.rate)

    def responses(self) -> Estimate:
        """Of sums over an observed and an updating response. Their errors are not those of tokens
        added up: all tokens share the directions.
        """
        return _products(
            _sums(self.observed, self.observed_lengths),
            _sums(self.updating, [len(label.tokens) for label in self.labels]),
            self.rate,
        )


def sketch_forces(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    directions: int,
    seed: int = 0,
    update: float | FrozenUpdate = 1.0,
    at: Weights | None = None,
    observed_temperature: float = 1.0,
    parameters: Collection[str] | None = None,
    batch_tokens: int = 4_096,
) -> Sketch:
    """Sketches the map of `force_map`, with one forward-mode pass per direction and batch.

    It holds a few directions at a time and no gradient, and costs `6 N (ΣT_o + ΣT_u)` operations
    per direction, whatever the number of response tokens.

    **Arguments:** as in `force_map`; `directions`: k, two or more; `batch_tokens`: bound on
    sequences × padded length of one pass.

    **Raises:** `ConfigError` as `force_map` does, and for a model without forward derivatives.
    """
    if directions < FEWEST:
        raise ConfigError("directions", directions, "give two or more: one has no standard error")
    derivatives_of(policy).require("forward")
    problem = pose(
        policy,
        observed,
        updating,
        objective,
        update=update,
        at=at,
        observed_temperature=observed_temperature,
        parameters=parameters,
    )
    sides = [
        _projected(problem.kernel, side, directions, seed, batch_tokens)
        for side in (problem.observed, problem.updating)
    ]
    lengths = tuple(sequence.response_length for sequence in observed)
    return Sketch(sides[0], sides[1], problem.rate, lengths, tuple(problem.labels))


def _projected(
    kernel: Kernel,
    responses: Sequence[WeightedResponse],
    directions: int,
    seed: int,
    batch_tokens: int,
) -> Float[Tensor, "directions tokens"]:
    """`⟨∇ s, P^{1/2} d_j⟩` of all tokens of the responses, in their order."""
    of: dict[int, Tensor] = {}
    for members in by_length([response.sequence for response in responses], batch_tokens):
        batch = [responses[member] for member in members]
        along = scores_along(kernel.policy, kernel.at, _drawn(kernel, directions, seed), batch)
        parts = along.split([len(response.weights) for response in batch], dim=1)
        of.update(zip(members, parts, strict=True))
    return torch.cat([of[number] for number in range(len(responses))], dim=1)


def _drawn(kernel: Kernel, directions: int, seed: int) -> Iterator[Weights]:
    """Signs: of all independent entries these give products of the least variance. Each batch draws
    the same ones again, so that none are kept.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(directions):
        direction = {}
        for name in sorted(kernel.wanted):
            own = kernel.at[name]
            signs = torch.randint(2, own.shape, generator=generator, dtype=torch.int8)
            drawn = (2 * signs - 1).to(own)
            direction[name] = drawn if kernel.scale is None else drawn * kernel.scale[name].sqrt()
        yield direction


def _products(left: Tensor, right: Tensor, rate: float) -> Estimate:
    k = len(left)
    mean = left.T @ right / k
    square = left.square().T @ right.square() / k
    spread = (square - mean.square()).clamp_min(0) / (k - 1)
    return Estimate(rate * mean, rate * spread.sqrt())


def _sums(tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    ends = list(accumulate(lengths))
    parts = zip([0, *ends[:-1]], ends, strict=True)
    return torch.stack([tokens[:, start:stop].sum(1) for start, stop in parts], dim=1)
