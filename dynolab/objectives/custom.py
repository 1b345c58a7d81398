"""A loss on pairs of one's own: a function of both answers' log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field

from dynolab.errors import ConfigError
from dynolab.functions import named_function
from dynolab.objectives.pairs import Answers, PairConfig, PairObjective, Pairs

PairLoss = Callable[..., Pairs]
"""`(chosen: Answers, rejected: Answers, **settings) -> φ`, one number for each pair."""


class CustomConfig(PairConfig):
    """Settings of a loss on pairs of one's own."""

    name: Literal["custom"] = "custom"
    loss: str = Field(description="Dotted path of the function, such as my_losses.my_loss.")
    settings: dict[str, float] = Field(default={}, description="Arguments of the function by name.")
    needs_reference: bool = Field(
        default=True, description="Whether it reads log-ratios to the reference policy."
    )


class Custom(PairObjective[CustomConfig]):
    """`φ = loss(chosen, rejected, **settings)`, one number for each pair, from `Answers`.

    The loss's gradient by the log-probabilities is its force, so that nothing else has to be
    written.

    **Raises:** `ConfigError` for a function outside the modules that the environment allows,
    before importing it, and for one that does not return a finite number for each pair that
    depends on this pair's log-probabilities alone.
    """

    def __init__(self, config: CustomConfig) -> None:
        super().__init__(config)
        self._function: PairLoss = named_function("objective.loss", config.loss, {})
        self._check()

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        """As configured."""
        return self.config.needs_reference

    def pair_loss(self, chosen: Answers, rejected: Answers) -> Pairs:
        """The function's value."""
        return self._function(chosen, rejected, **self.config.settings)

    def _check(self) -> None:
        """Tries the function on three pairs, with the chosen answers the likelier ones and not."""
        length = torch.tensor([2, 3, 5])
        right = moved = False
        for order in ((0, 1, 2, 3), (2, 3, 0, 1)):
            scores = -torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3).requires_grad_()
            a, b, c, d = (scores[row] for row in order)
            sides = Answers(a, b, length), Answers(c, d, length)
            value = self._function(*sides, **self.config.settings)
            right = isinstance(value, torch.Tensor) and value.shape == (3,) and value.requires_grad
            if right and bool(value.isfinite().all()):
                (slope,) = torch.autograd.grad(value[1], scores)
                moved |= bool(slope[:, 1].any())
                right = bool(slope.isfinite().all()) and not slope[:, [0, 2]].any()
            if not right:
                break
        if not (right and moved):
            raise ConfigError(
                "objective.loss",
                self.config.loss,
                "must return one finite number for each pair, which depends on the "
                "log-probabilities of this pair alone",
            )
