"""The dose that forces choose, in TRL's trainer of groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from dynolab import distributed
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.integrations.dose import DesignedDose, DoseStep
from dynolab.integrations.protected_sample import ProtectedSample

if TYPE_CHECKING:
    from transformers import Trainer


class DesignedGroupDose(DesignedDose):
    """Weakens each step's push on wrong answers of groups, so that right ones do not fall by it.

    `DesignedDose` for TRL's `GRPOTrainer`: what it protects is the mean log π, at temperature 1, of
    the answers of the same batch whose advantage is above 0; what it weakens is the gradient
    through those below 0. Each batch of an accumulated step, on all ranks, protects its own;
    `dose/others` is then the change of the last one's.

    **Arguments:**

    - `trainer`: a `GRPOTrainer` of TRL, before training.
    - `per`: what has its own dose: a device's batch, or each token.

    **Raises:** `ConfigError` as `DesignedDose`.
    """

    trainers = ("GRPOTrainer",)

    def __init__(self, trainer: Trainer, *, per: Literal["batch", "token"] = "batch") -> None:
        super().__init__(trainer, per=per, every=1)

    def _answers(self) -> list[Encoded]:
        # The batch comes with the loss, which the forward's hooks do not see.
        self._loss = self.trainer.compute_loss
        self.trainer.compute_loss = self._compute_loss  # type: ignore[method-assign]
        return []

    def _compute_loss(self, model: nn.Module, inputs: Any, *rest: Any, **named: Any) -> Any:
        self._inputs = inputs
        return self._loss(model, inputs, *rest, **named)

    def give_up(self) -> None:
        """Takes the hooks away; pushes are whole again."""
        super().give_up()
        if self.trainer.compute_loss == self._compute_loss:
            self.trainer.compute_loss = self._loss  # type: ignore[method-assign]

    def _protect(self, protected: ProtectedSample, rows: Sequence[tuple[int, ...]]) -> None:
        advantages = self._inputs["advantages"].detach().cpu()
        if advantages.dim() > 1:
            advantages = (advantages * self._inputs["completion_mask"].cpu()).sum(1)
        if len(advantages) != len(rows):
            remedy = f"doses need a batch of {len(advantages)} answers in one forward"
            raise ConfigError("trainer", type(self.trainer).__name__, remedy)
        self._rejected = advantages < 0
        prompts = self._inputs["prompt_mask"].sum(1).tolist()
        right = []
        for row, prompt, advantage in zip(rows, prompts, advantages.tolist(), strict=True):
            if advantage > 0 and prompt < len(row):
                right.append(Encoded(row, prompt))
        right = list(chain.from_iterable(distributed.gather(right)))
        protected.slope = protected.direction = {}
        if right:
            protected.take(right)
            self._is_fresh = True

    def _read_step(self) -> DoseStep | None:
        # Groups whose answers are all alike have no push to weaken.
        if self._protected is not None and not self._protected.slope:
            return None
        self._is_one_sample = len(self._effects) == 1
        return super()._read_step()
