"""Each pair's push on its rejected answer, scaled into the pair's band, in TRL's trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.errors import ConfigError
from dynolab.integrations.dose import DesignedDose
from dynolab.integrations.dose_passes import BYPASSED, Outputs, outputs_of, without_autocast
from dynolab.training.dose import pair_dose

if TYPE_CHECKING:
    from transformers import Trainer


class CalibratedDose(DesignedDose):
    """Scales each pair's push on its rejected answer so that the pair keeps its chosen answer.

    The gradient of the loss through a pair's rejected answer is multiplied by the dose nearest to 1
    at which a step along the pair's own gradient, to first order, does not lower its chosen answer
    and does not raise its rejected one: the disentanglement band of Chen et al. (arXiv 2604.18239),
    by the gradients of all trained weights. The loss's value is not changed, nor what it does to
    chosen answers. It takes a forward and a backward pass more for every answer, one by one, and
    holds two gradients.

    The trainer's log has `dose/rejected`, the mean dose, and `dose/in_band`, the share of pairs
    that were in the band with whole pushes. If it fails, one warning says why, and training goes on
    with whole pushes.

    **Arguments:** `trainer`: a `DPOTrainer`, `CPOTrainer` or `ORPOTrainer` of TRL, before training.

    **Raises:** `ConfigError` as `DesignedDose`.
    """

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer)

    def _prepare(self) -> None:
        self._watch_forwards()
        self._weights = [p for p in self._model.parameters() if p.requires_grad]

    def _weaken(self, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        outputs = outputs_of(output)
        if outputs.requires_grad:
            self._check_pairs(len(outputs))
            outputs.register_hook(lambda gradient: self._calibrated(gradient, arguments, named))

    def _calibrated(
        self, gradient: Outputs, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Outputs | None:
        """The gradient by the outputs, each rejected row multiplied by its pair's dose."""
        if self._busy:
            return None
        self._busy = True
        try:
            return self.attempt(lambda: self._scaled(gradient, arguments, named))
        finally:
            self._busy = False

    def _scaled(
        self, gradient: Outputs, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Outputs:
        pairs = len(gradient) // 2
        doses = gradient.new_ones(len(gradient))
        for pair in range(pairs):
            rows = (pair, pair + pairs)
            sides = [self._push(gradient, row, arguments, named) for row in rows]
            doses[pair + pairs] = pair_dose(*sides)
        pushed = doses[pairs:]
        share_undosed = (pushed == 1).double().mean()
        self._effects.append(torch.stack([pushed.double().mean(), share_undosed]).cpu())
        return gradient * doses.view(-1, *[1] * (gradient.dim() - 1))

    def _push(
        self, gradient: Outputs, row: int, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Sequence[Float[Tensor, " ..."]]:
        """The gradient of the loss by the weights through one row's outputs."""

        def of_row(value: Any) -> Any:
            is_row = isinstance(value, Tensor) and value.dim() and len(value) == len(gradient)
            return value[row : row + 1] if is_row else value

        with torch.enable_grad(), without_autocast(self._model, gradient.device):
            output = self._model(
                *map(of_row, arguments), **{name: of_row(value) for name, value in named.items()}
            )
            outputs = outputs_of(output)
        pull = gradient[row : row + 1].to(outputs)
        return torch.autograd.grad(outputs, self._weights, pull, materialize_grads=True)

    def _read_step(self) -> Any:
        gradients = (p.grad for p in self._weights)
        if not self._effects and any(g is not None and bool(g.any()) for g in gradients):
            raise ConfigError("trainer", type(self.trainer).__name__, BYPASSED)
        return torch.stack(self._effects).mean(0) if self._effects else None

    def _enter_log(self, step: Any) -> None:
        self._store({"dose/rejected": float(step[0]), "dose/in_band": float(step[1])})
