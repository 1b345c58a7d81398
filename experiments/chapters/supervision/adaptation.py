"""How fast both factorisations of a joint distribution adapt to an intervention on the cause.

A causes B: `p(a, b) = p(a) p(b|a)`. One learner holds the tables of p(A) and p(B|A), the other
those of p(B) and p(A|B). Both are trained on the same joint; then p(A) is replaced, and the
mechanism p(B|A) stays the same. The first learner has to relearn only p(A), the second both
tables, so the first should need fewer examples (Bengio et al., A Meta-Transfer
Objective, arXiv 1901.10912, §2 and 3).

Table `adaptations`: one row for each `direction` (`causal`: p(A) and p(B|A), `anti-causal`: p(B)
and p(A|B)), seed and learning rate. `kl[t]` is the divergence of the learner's joint from the true
one after t examples, nats, mean over problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class AdaptationConfig(BaseModel):
    """Two variables with equally many values, and how their learners adapt."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: int = Field(10, ge=2, description="Values of A and of B.")
    problems: int = Field(50, ge=1, description="Random joints and interventions per seed.")
    examples: int = Field(100, ge=1, description="Examples after the intervention, one per step.")
    learning_rates: tuple[float, ...] = Field(
        (0.03, 0.1, 0.3, 1.0),
        min_length=1,
        description="Step sizes; each learner is judged at the one where it adapts fastest.",
    )


@dataclass
class Learner:
    """Tables of logits of `p(x) p(y|x)`, one learner for every learning rate and problem."""

    marginal: Float[Tensor, "rates problems values"]
    conditional: Float[Tensor, "rates problems values values"]

    @classmethod
    def of(cls, joint: Float[Tensor, "problems values values"], rates: int) -> Learner:
        """Learners fitted to the joint p(x, y): their tables are its marginal and conditional.

        This is the limit of unlimited training examples, so both learners start alike.
        """
        marginal = joint.sum(2)
        conditional = joint / marginal[..., None]
        return cls(
            marginal.log().expand(rates, -1, -1).clone(),
            conditional.log().expand(rates, -1, -1, -1).clone(),
        )

    def logp(self) -> Float[Tensor, "rates problems values values"]:
        """`log p(x, y)`."""
        return self.marginal.log_softmax(-1)[..., None] + self.conditional.log_softmax(-1)

    def learn(
        self,
        x: Int[Tensor, " problems"],
        y: Int[Tensor, " problems"],
        rates: Float[Tensor, " rates"],
    ) -> None:
        """Takes a gradient step on `−log p(x, y)` of one example: logits move by η (e − p)."""
        problems = torch.arange(len(x))
        row = self.conditional[:, problems, x]
        pull = -row.softmax(-1)
        pull[:, problems, y] += 1
        self.conditional[:, problems, x] = row + rates[:, None, None] * pull
        pull = -self.marginal.softmax(-1)
        pull[:, problems, x] += 1
        self.marginal = self.marginal + rates[:, None, None] * pull


def compare_adaptation(config: AdaptationConfig, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Adapts both learners to the same examples, seed by seed."""
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        shape = (config.problems, config.values)
        cause, intervened = _simplex(shape, generator), _simplex(shape, generator)
        mechanism = _simplex((*shape, config.values), generator)
        before, after = cause[..., None] * mechanism, intervened[..., None] * mechanism
        drawn = torch.multinomial(
            after.flatten(1), config.examples, replacement=True, generator=generator
        )
        a, b = drawn // config.values, drawn % config.values
        yield from _adapt("causal", before, after, a, b, config, seed)
        yield from _adapt("anti-causal", before.mT, after.mT, b, a, config, seed)


def _simplex(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws distributions along the last axis, uniform over the simplex."""
    exponentials = -torch.rand(shape, generator=generator, dtype=torch.float64).log()
    return exponentials / exponentials.sum(-1, keepdim=True)


def _adapt(
    direction: str,
    before: Float[Tensor, "problems values values"],
    after: Float[Tensor, "problems values values"],
    x: Int[Tensor, "problems examples"],
    y: Int[Tensor, "problems examples"],
    config: AdaptationConfig,
    seed: int,
) -> Iterator[dict[str, Any]]:
    rates = torch.tensor(config.learning_rates, dtype=before.dtype)
    learner = Learner.of(before, len(rates))

    def divergence() -> Float[Tensor, " rates"]:
        return (after * (after.log() - learner.logp())).sum((2, 3)).mean(1)

    path = [divergence()]
    for number in range(config.examples):
        learner.learn(x[:, number], y[:, number], rates)
        path.append(divergence())
    for rate, kl in zip(config.learning_rates, torch.stack(path).T.tolist(), strict=True):
        yield {"direction": direction, "seed": seed, "learning_rate": rate, "kl": kl}
