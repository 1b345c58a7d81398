"""The answers that doses protect: a sample, its slope, and the way the optimizer goes along it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from dynolab import distributed
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.weights import NamedTensors
from dynolab.integrations.dose_passes import evaluating
from dynolab.integrations.optimizer import config_of
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.training.config import OptimizerConfig
from dynolab.training.engine import SECOND_MOMENT, in_metric


class ProtectedSample:
    """A sample of chosen answers and the mean of their log π, while a model is trained.

    `slope`: q, the mean's gradient by every trained weight; empty where another sample is due.
    `direction`: d = P q, where the optimizer would move the weights by it; empty where it is to be
    taken anew. `rise`: ⟨q, d⟩, what the mean gains along it.

    **Arguments:** `answers`: those to draw from; `size`: of a sample.

    **Raises:** `ConfigError` for an optimizer of another form than SGD, Adam, AdamW and RMSprop.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        answers: Sequence[Encoded],
        size: int,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._answers, self._size = answers, size
        self._device = next(model.parameters()).device
        self._logits = ResponseLogits(model)
        self.trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.answers: list[Encoded] = []
        self.mean = self.rise = 0.0
        self.slope: NamedTensors = {}
        self.direction: NamedTensors = {}
        self._version = 0  # of the weights at which `mean` was taken (`_versions`)
        list(self.groups())  # raises for an optimizer of another form

    def weights(self, reach: float = 0.0) -> NamedTensors:
        """Weights along the direction, in float32 where they have less."""
        weights = {}
        for name, p in self._model.named_parameters():
            if p.is_floating_point():  # quantised ones stay as they are
                weights[name] = p.detach().to(torch.promote_types(p.dtype, torch.float32))
                if reach and name in self.direction:
                    weights[name] = weights[name] + reach * self.direction[name]
        return weights

    def draw(self, batch: set[tuple[int, ...]], seed: str) -> None:
        """Draws the sample, and takes it.

        **Arguments:** `batch`: this rank's tokens, which the sample leaves out where it can.
        """
        batch = set().union(*distributed.gather(batch))
        others = [answer for answer in self._answers if answer.ids not in batch]
        others = others or list(self._answers)
        self.take(random.Random(seed).sample(others, min(self._size, len(others))))

    def take(self, answers: Sequence[Encoded]) -> None:
        """Protects these answers, the same on every rank: takes their mean log π and its slope."""
        self.answers = list(answers)
        self.measure()
        weights = tuple(self.trained.values())
        slopes = tuple(torch.zeros_like(weight) for weight in weights)
        mine = distributed.deal(self.answers)
        if mine:
            with evaluating(self._model):
                logps = self._logits(collate(mine, 0).to(self._device), token_logps)
                slopes = torch.autograd.grad(logps.sum(), weights, materialize_grads=True)
        self.slope = {}
        for name, slope in zip(self.trained, slopes, strict=True):
            mean = slope.detach().float() / len(self.answers)
            self.slope[name] = distributed.add_up(mean)

    def measure(self) -> None:
        """Takes the sample's mean log π with the weights as they are."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        mine = distributed.deal(self.answers)
        if mine:
            # `ResponseLogits` has the model as its `model`.
            weights = {f"model.{name}": weight for name, weight in self.weights().items()}
            batch = collate(mine, 0).to(self._device)
            with torch.no_grad(), evaluating(self._model):
                total += functional_call(self._logits, weights, (batch, token_logps)).double().sum()
        self.mean = float(distributed.add_up(total)) / len(self.answers)
        self._version = self._versions()

    def point(self) -> None:
        """The direction in which the optimizer would move the weights by the sample's slope.

        It has the groups' learning rates and this step's second moments, up to a factor.
        """
        if self._version != self._versions():  # moved by something else than the step
            self.measure()
        groups, self.direction = list(self.groups()), {}
        rates = [float(group["lr"]) for group, _, _ in groups]
        # At the first step of a warm-up all rates are 0, but momentum keeps its gradient, which
        # later rates apply: then the groups' rates after the warm-up stand for them.
        if not any(rates):
            rates = [float(group.get("initial_lr") or 1.0) for group, _, _ in groups]
        for rate, (_, config, members) in zip(rates, groups, strict=True):
            key = SECOND_MOMENT.get(config.name)
            step, moments = 0, {}
            for name, p in members.items():
                state = self.state(p)
                step = max(step, int(state.get("step", 0)))
                if key in state:
                    moments[name] = state[key].float()
            slopes = {name: self.slope[name] for name in members}
            for name, moved in in_metric(config, step, slopes, moments).items():
                self.direction[name] = rate * moved
        self.rise = sum(total(self.slope[n] * moved) for n, moved in self.direction.items())
        if not self.rise > 0:
            raise ConfigError(
                "examples", len(self.answers), "no trained weight moves their log-probabilities"
            )

    def groups(
        self,
    ) -> Iterator[tuple[dict[str, Any], OptimizerConfig, NamedTensors]]:
        """Options, form and trained weights of every group of the optimizer."""
        for group in self._optimizer.param_groups:
            config = config_of(self._optimizer, group)
            if config is None:
                raise ConfigError(
                    "trainer.optimizer",
                    type(self._optimizer).__name__,
                    "doses need the form of its steps; use SGD, AdamW, RMSprop, or Adam without "
                    "weight decay, with none of nesterov, dampening, amsgrad, maximize, centered",
                )
            members = {id(p) for p in group["params"]}
            yield group, config, {n: p for n, p in self.trained.items() if id(p) in members}

    def state(self, weight: Float[Tensor, " ..."]) -> NamedTensors:
        """The optimizer's tensors of a weight."""
        state = self._optimizer.state.get(weight, {})
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}

    def _versions(self) -> int:
        """A number that grows where a weight is written to."""
        return sum(weight._version for weight in self.trained.values())


def total(values: Float[Tensor, " ..."]) -> float:
    """Their sum, in float64."""
    return float(values.sum(dtype=torch.float64))
