"""How hard a step pushes: the doses that it chooses, and the dynamic learning rates it logs."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import functional_call

from dynolab import distributed
from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.groups import Group, with_tokens
from dynolab.errors import ConfigError
from dynolab.likelihood.decoder import Reading
from dynolab.likelihood.entropy_scores import entropy_scores
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import Objective
from dynolab.objectives.grpo import GroupDoseConfig
from dynolab.objectives.pairs import (
    DesignedDoseConfig,
    PairObjective,
    Per,
    TokenEffects,
    band_dose,
    designed_doses,
)
from dynolab.objectives.policy_gradient import ClippedConfig, aggregation_weights
from dynolab.training.config import LoopConfig
from dynolab.training.engine import Engine, in_metric
from dynolab.training.step_batch import StepExample

REACH = 10.0
"""The sample's mean log π is moved by this many square roots of the dtype's precision, in nats.

Along the sample's gradient one-sided differences then err by about as much through curvature as
through rounding.
"""


Protected = tuple[TokenBatch, Reading, Float[Tensor, " _"]]
"""What is protected of a batch: the sum of its tokens' values, each times a factor."""


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
    """The largest doses at which a step lowers what it protects not at all, to first order.

    On rows it protects a sample of other chosen answers: q is the gradient of their mean log π, by
    one backward pass. On groups it protects answers of the step itself (`GroupDoseConfig`): q is
    the gradient of their mean log π, or of the entropy. One more forward of the batch, a little
    along P q, gives every token's `s_l = ∇log π_l · P q` at once (`objectives.designed_dose`). P is
    the optimizer's metric (`in_metric`). Momentum and weight decay are left out: momentum was paid
    for when it was made.

    **Arguments:**

    - `logits`: the policy that the engine trains.
    - `rows`: all rows of a training on rows; the sample is drawn from them by seed and step.

    **Raises:** `ConfigError` if no row is left outside a batch.
    """

    def __init__(
        self,
        config: LoopConfig,
        logits: ResponseLogits,
        objective: Objective,
        rows: Sequence[EncodedExample] = (),
        pad_id: int = 0,
    ) -> None:
        assert config.designed_dose is not None
        self._dose, self._config, self._logits = config.designed_dose, config, logits
        self._objective, self._pad_id = objective, pad_id
        if isinstance(self._dose, DesignedDoseConfig):
            self._rows = rows_to_protect(config, rows)

    def design(
        self,
        engine: Engine,
        step: int,
        batches: Sequence[TokenBatch],
        starts: Sequence[Float[Tensor, " _"]],
        ids: Collection[str],
    ) -> list[Float[Tensor, " _"]]:
        """The dose of every token of this rank's micro-batches, 1 on those that are not dosed.

        **Arguments:** `starts`: log π of the batches' tokens before the step, in nats; `ids`: of
        all the step's examples, which the sample of rows leaves out.
        """
        dose = self._dose
        if isinstance(dose, DesignedDoseConfig):
            protected = self._of_rows(self._sample(step, ids, dose.sample))
        else:
            protected = self._of_groups(batches, dose)
        slopes = self._slopes(engine, step, self._gradient(protected), batches, starts)
        mine = list(map(self._effects, batches, starts, slopes))
        ranks = distributed.gather(mine)
        first = sum(map(len, ranks[: distributed.rank()]))
        # The tokens of a group count, as those of a pair, by their example.
        per: Per = "pair" if dose.per == "group" else dose.per
        doses = designed_doses(list(chain.from_iterable(ranks)), per)
        my_doses = doses[first : first + len(mine)]
        return [dose.to(start) for dose, start in zip(my_doses, starts, strict=True)]

    def _sample(self, step: int, ids: Collection[str], size: int) -> list[Encoded]:
        """Chosen answers outside the step's examples, the same on every rank."""
        others = [row.chosen for row in self._rows if row.id not in ids]
        draws = random.Random(f"{self._config.seed}/{step}")
        return draws.sample(others, min(size, len(others)))

    def _effects(
        self, batch: TokenBatch, start: Float[Tensor, " tokens"], slope: Float[Tensor, " tokens"]
    ) -> TokenEffects:
        weights = self._objective.token_weights(start, batch)
        dosed = batch.token_side == REJECTED
        if isinstance(self._dose, GroupDoseConfig) and self._dose.protect == "entropy":
            dosed = torch.ones_like(dosed)
        return TokenEffects(
            effect=(weights * slope).cpu(),
            push=weights.abs().cpu(),
            rejected=dosed.cpu(),
            pair=batch.example[batch.sequence].cpu(),
        )

    def _slopes(
        self,
        engine: Engine,
        step: int,
        gradient: dict[str, Tensor],
        batches: Sequence[TokenBatch],
        starts: Sequence[Float[Tensor, " _"]],
    ) -> list[Float[Tensor, " _"]]:
        """`∇log π_l · P q` of every token, by one-sided differences."""
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

    def _of_rows(self, sample: Sequence[Encoded]) -> Iterator[Protected]:
        """The mean log π of a sample's answers, this rank's part."""
        mine, at_once = distributed.deal(sample), 2 * self._config.micro_examples
        for start in range(0, len(mine), at_once):
            batch = collate(mine[start : start + at_once], self._pad_id).to(self._device)
            weights = torch.full_like(batch.token, 1 / len(sample), dtype=torch.float32)
            yield batch, token_logps, weights

    def _of_groups(
        self, batches: Sequence[TokenBatch], dose: GroupDoseConfig
    ) -> Iterator[Protected]:
        """The mean log π of a step's right answers, or the mean entropy; this rank's part."""
        right = [_are_right(batch) for batch in batches]
        answers = sum(distributed.gather(sum(int(of_batch.sum()) for of_batch in right)))
        for batch, of_batch in zip(batches, right, strict=True):
            if dose.protect == "entropy":
                weights = torch.full_like(batch.token, 1 / batch.totals.tokens, dtype=torch.float32)
                yield batch, _entropies, weights
            else:
                yield batch, token_logps, of_batch[batch.sequence] / max(1, answers)

    def _gradient(self, protected: Iterable[Protected]) -> dict[str, Tensor]:
        """Of the sum of all ranks' `weights · read(logits)`."""
        names, weights = zip(*self._trained(), strict=True)
        total = [torch.zeros_like(weight) for weight in weights]
        for batch, read, factors in protected:
            value = (factors * self._logits(batch, read)).sum()
            parts = torch.autograd.grad(value, weights, materialize_grads=True)
            for gradient, part in zip(total, parts, strict=True):
                gradient += part
        return {name: distributed.add_up(g) for name, g in zip(names, total, strict=True)}

    @property
    def _device(self) -> torch.device:
        return self._trained()[0][1].device

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


def _are_right(batch: TokenBatch) -> Bool[Tensor, " sequences"]:
    """Which answers of groups are pushed up."""
    assert batch.advantage is not None
    return batch.sequence_sum(batch.advantage) > 0


def _entropies(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, " tokens"]:
    return entropy_scores(logits, batch).entropy


def doses_by_example(batch: TokenBatch) -> list[Float[Tensor, " _"]]:
    """The doses of every example's tokens, on the CPU; none where the batch has no doses.

    Of pairs those of the rejected tokens.
    """
    if batch.dose is None:
        return []
    if batch.advantage is not None:
        tokens = torch.bincount(batch.example[batch.sequence].cpu(), minlength=len(batch.ids))
        return list(batch.dose.cpu().split(tokens.tolist()))
    by_sequence = batch.dose.cpu().split(batch.sequence_length.tolist())
    return [dose for dose, side in zip(by_sequence, batch.side, strict=True) if side == REJECTED]


def with_doses(
    examples: Sequence[StepExample], doses: Sequence[Float[Tensor, " _"]]
) -> list[StepExample]:
    """A step's examples with the doses of `doses_by_example`, for its record."""
    dosed: list[StepExample] = []
    for example, dose in zip(examples, doses, strict=True):
        if isinstance(example, Group):
            dosed += with_tokens([example], "dose", dose)
        else:
            dosed.append(replace(example, dose=dose))
    return dosed


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
