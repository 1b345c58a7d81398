"""How hard a step pushes: the doses that it chooses, and the dynamic learning rates it logs."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from dynolab import distributed
from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import Objective
from dynolab.objectives.pairs import (
    DesignedDoseConfig,
    PairObjective,
    TokenEffects,
    band_dose,
    designed_doses,
)
from dynolab.objectives.policy_gradient import ClippedConfig, aggregation_weights
from dynolab.training.config import LoopConfig
from dynolab.training.engine import Engine, in_metric
from dynolab.training.step_batch import ScoredRow, StepExample

REACH = 10.0
"""The sample's mean log π is moved by this many square roots of the dtype's precision, in nats.

Along the sample's gradient one-sided differences then err by about as much through curvature as
through rounding.
"""


def rows_to_protect(config: LoopConfig, rows: Sequence[EncodedExample]) -> list[EncodedExample]:
    """The rows of a training with designed doses; `ConfigError` if a batch leaves none of them."""
    trained = [row for row in rows if row.id not in config.without]
    if len(trained) <= config.batch_size:
        raise ConfigError(
            "objective.designed_dose",
            f"{len(trained)} rows",
            f"protects answers outside the batch of {config.batch_size}; give more rows or a "
            "smaller batch_size",
        )
    return trained


class DoseDesigner:
    """The largest doses at which a step lowers no sample of other chosen answers, to first order.

    One backward pass of the sample gives q, the gradient of its mean log π. One more forward of
    the batch, a little along P q, gives every token's `s_l = ∇log π_l · P q` at once
    (`objectives.designed_dose`). P is the optimizer's metric (`in_metric`). Momentum and weight
    decay are left out: momentum was paid for when it was made.

    **Arguments:**

    - `logits`: the policy that the engine trains.
    - `rows`: all rows of the training; the sample is drawn from them by seed and step.

    **Raises:** `ConfigError` if no row is left outside a batch.
    """

    def __init__(
        self,
        dose: DesignedDoseConfig,
        config: LoopConfig,
        logits: ResponseLogits,
        objective: Objective,
        rows: Sequence[EncodedExample],
        pad_id: int,
    ) -> None:
        self._dose, self._config, self._logits = dose, config, logits
        self._objective, self._pad_id = objective, pad_id
        self._rows = rows_to_protect(config, rows)

    def design(
        self,
        engine: Engine,
        step: int,
        batches: Sequence[TokenBatch],
        starts: Sequence[Float[Tensor, " _"]],
        ids: Collection[str],
    ) -> list[Float[Tensor, " _"]]:
        """The dose of every token of this rank's micro-batches, 1 on chosen ones.

        **Arguments:** `starts`: log π of the batches' tokens before the step, in nats; `ids`: of
        all the step's examples, which the sample leaves out.
        """
        slopes = self._slopes(engine, step, self._sample(step, ids), batches, starts)
        mine = list(map(self._effects, batches, starts, slopes))
        ranks = distributed.gather(mine)
        first = sum(map(len, ranks[: distributed.rank()]))
        doses = designed_doses(list(chain.from_iterable(ranks)), self._dose.per)
        my_doses = doses[first : first + len(mine)]
        return [dose.to(start) for dose, start in zip(my_doses, starts, strict=True)]

    def _sample(self, step: int, ids: Collection[str]) -> list[Encoded]:
        """Chosen answers outside the step's examples, the same on every rank."""
        others = [row.chosen for row in self._rows if row.id not in ids]
        draws = random.Random(f"{self._config.seed}/{step}")
        return draws.sample(others, min(self._dose.sample, len(others)))

    def _effects(
        self, batch: TokenBatch, start: Float[Tensor, " tokens"], slope: Float[Tensor, " tokens"]
    ) -> TokenEffects:
        weights = self._objective.token_weights(start, batch)
        return TokenEffects(
            effect=(weights * slope).cpu(),
            push=weights.abs().cpu(),
            rejected=(batch.token_side == REJECTED).cpu(),
            pair=batch.example[batch.sequence].cpu(),
        )

    def _slopes(
        self,
        engine: Engine,
        step: int,
        sample: Sequence[Encoded],
        batches: Sequence[TokenBatch],
        starts: Sequence[Float[Tensor, " _"]],
    ) -> list[Float[Tensor, " _"]]:
        """`∇log π_l · P q` of every token, by one-sided differences."""
        gradient = self._gradient(sample)
        direction = in_metric(self._config.optimizer, step, gradient, engine.second_moments())
        rise = torch.stack([(g * direction[name]).sum() for name, g in gradient.items()]).sum()
        reach = REACH * torch.finfo(rise.dtype).eps ** 0.5 / rise
        moved, slopes = {}, []
        for name, weight in self._trained():
            moved[f"model.{name}"] = weight.detach() + reach * direction[name]
        with torch.no_grad():
            for batch, start in zip(batches, starts, strict=True):
                logps = functional_call(self._logits, moved, (batch, token_logps))
                slopes.append((logps - start) / reach)
        return slopes

    def _gradient(self, sample: Sequence[Encoded]) -> dict[str, Tensor]:
        """Of the sample's mean log π, summed over the ranks, which split the sample."""
        names, weights = zip(*self._trained(), strict=True)
        total = [torch.zeros_like(weight) for weight in weights]
        mine, at_once = distributed.deal(sample), 2 * self._config.micro_examples
        for start in range(0, len(mine), at_once):
            batch = collate(mine[start : start + at_once], self._pad_id).to(weights[0].device)
            mean = self._logits(batch, token_logps).sum() / len(sample)
            parts = torch.autograd.grad(mean, weights, materialize_grads=True)
            for gradient, part in zip(total, parts, strict=True):
                gradient += part
        return {name: distributed.add_up(g) for name, g in zip(names, total, strict=True)}

    def _trained(self) -> list[tuple[str, Tensor]]:
        """The weights that are trained, by their names in the model."""
        named = self._logits.model.named_parameters()
        return [(name, weight) for name, weight in named if weight.requires_grad]


class Calibrator:
    """The doses nearest to 1 at which each pair's own step is in the band (`band_dose`).

    It takes the gradient through each answer by itself: a forward and a backward more for each,
    and two tensors of the weights' size. The band is that of plain gradients, as in the paper.

    **Arguments:**

    - `logits`: the policy that the engine trains.
    - `rows`: all rows of the training.
    """

    def __init__(
        self,
        logits: ResponseLogits,
        objective: Objective,
        rows: Sequence[EncodedExample],
        pad_id: int,
    ) -> None:
        self._logits, self._objective, self._pad_id = logits, objective, pad_id
        self._rows = {row.id: row for row in rows}

    def design(
        self,
        engine: Engine,
        step: int,
        batches: Sequence[TokenBatch],
        starts: Sequence[Float[Tensor, " _"]],
        ids: Collection[str],
    ) -> list[Float[Tensor, " _"]]:
        """The dose of every token of this rank's micro-batches, 1 on chosen ones."""
        return [self._doses(*part) for part in zip(batches, starts, strict=True)]

    def _doses(
        self, batch: TokenBatch, start: Float[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        weights, doses = self._objective.token_weights(start, batch), torch.ones_like(start)
        for number, name in enumerate(batch.ids):
            row = self._rows[name]
            pushes = []
            of_pair = batch.example[batch.sequence] == number
            for side, answer in ((CHOSEN, row.chosen), (REJECTED, row.rejected)):
                assert answer is not None
                of_answer = of_pair & (batch.token_side == side)
                pushes.append(self._push(answer, weights[of_answer]))
            doses[of_pair & (batch.token_side == REJECTED)] = pair_dose(*pushes)
        return doses

    def _push(self, answer: Encoded, weights: Float[Tensor, " tokens"]) -> tuple[Tensor, ...]:
        """`Σ_l c_l ∇log π_l` of an answer's tokens."""
        trained = [weight for weight in self._logits.parameters() if weight.requires_grad]
        with torch.enable_grad():
            logps = self._logits(collate([answer], self._pad_id).to(weights.device), token_logps)
            pushed = (weights * logps).sum()
        return torch.autograd.grad(pushed, trained, materialize_grads=True)


def pair_dose(chosen: Sequence[Tensor], rejected: Sequence[Tensor]) -> float:
    """`band_dose` of the loss's gradients through a pair's chosen and its rejected answer."""

    def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
        products = [(a * b).sum(dtype=torch.float64) for a, b in zip(left, right, strict=True)]
        return float(torch.stack(products).sum())

    # The loss pulls at one answer and pushes the other: the sign of their product is turned.
    product = -inner(chosen, rejected)
    return band_dose(inner(chosen, chosen), product, inner(rejected, rejected))


Designer = DoseDesigner | Calibrator
"""What chooses the doses of a training's steps."""


def rejected_doses(batch: TokenBatch) -> list[Float[Tensor, " _"]]:
    """The doses of every pair's rejected tokens, on the CPU; none where the batch has no doses."""
    if batch.dose is None:
        return []
    by_sequence = batch.dose.cpu().split(batch.sequence_length.tolist())
    return [dose for dose, side in zip(by_sequence, batch.side, strict=True) if side == REJECTED]


def with_doses(
    examples: Sequence[StepExample], doses: Sequence[Float[Tensor, " _"]]
) -> list[StepExample]:
    """A step's pairs with the doses of their rejected tokens, for its record."""
    return [
        replace(example, dose=dose) if isinstance(example, ScoredRow) else example
        for example, dose in zip(examples, doses, strict=True)
    ]


QUANTILES = (5, 25, 50, 75, 95)


@torch.no_grad()
def strengths(
    objective: Objective, logps: Float[Tensor, "tokens ..."], batch: TokenBatch
) -> Float[Tensor, " pushes"] | None:
    """Dynamic learning rates c_l times their denominators; None if all are equal (SFT).

    For pairs one per response: `|∂φ/∂s|`, β(1 − σ) under DPO, with a minus sign if the objective
    pushes chosen down or rejected up. For groups one per token: Âρ unless clipped.
    """
    if isinstance(objective, PairObjective):
        return objective.response_rates(logps, batch)
    config = getattr(objective, "config", None)
    if not isinstance(config, ClippedConfig):
        return None
    rates = objective.token_weights(logps, batch).reshape(len(batch.token), -1).sum(1)
    return rates / aggregation_weights(config, batch, rates)


def quantiles(mine: Sequence[Float[Tensor, " _"]]) -> dict[str, float]:
    """Quantiles of the step's dynamic learning rates over all ranks, by metric name."""
    # One copy to the host for all micro-batches.
    my_strengths = [torch.cat(list(mine)).cpu()] if mine else []
    every = list(chain.from_iterable(distributed.gather(my_strengths)))
    if not every:
        return {}
    values = np.percentile(torch.cat(every).double().numpy(), QUANTILES).tolist()
    names = [f"train/dynamic_learning_rate/q{q:02d}" for q in QUANTILES]
    return dict(zip(names, values, strict=True))
