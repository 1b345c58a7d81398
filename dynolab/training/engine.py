"""Optimizers and learning rates, and the engines that run steps for the training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.training.config import LoopConfig, OptimizerConfig
from dynolab.training.shards import Stretch, load_shards, save_shard

STATE_TENSORS = {
    "sgd": ("momentum_buffer",),
    "adamw": ("exp_avg", "exp_avg_sq"),
    "rmsprop": ("square_avg", "momentum_buffer"),
}
"""The optimizer state tensors that have the shape of their parameter."""

SECOND_MOMENT = {"adamw": "exp_avg_sq", "rmsprop": "square_avg"}
"""The state by whose root an optimizer divides."""

CLIP_EPSILON = 1e-6
"""What torch and DeepSpeed add to a gradient's norm before they clip by it."""


def build_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Builds the torch optimizer of a config."""
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
    if config.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,  # one pass over weights and moments instead of ten
        )
    return torch.optim.RMSprop(
        parameters,
        lr=config.learning_rate,
        alpha=config.smoothing,
        eps=config.epsilon,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def learning_rate(config: LoopConfig, step: int) -> float:
    """Learning rate at 0-based `step`: linear warm-up, then `config.schedule`.

    Of the steps after warm-up, the part s is over: `linear` has the rate times 1 − s, `cosine`
    times (1 + cos πs) / 2.
    """
    peak, warmup = config.optimizer.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    over = (step - warmup) / max(1, config.steps - warmup)
    match config.schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - over)
        case "cosine":
            return peak * (1 + math.cos(math.pi * over)) / 2


def in_metric(
    config: OptimizerConfig,
    step: int,
    gradient: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """P g: a gradient in the metric of 0-based `step`, up to a common factor.

    SGD: g. AdamW and RMSprop: `g / (√v' + ε)`, v' the second moment (AdamW's bias-corrected) after
    a step whose gradient is g, scaled to the moments' size. With the moment before the step alone,
    what earlier batches have hardly touched would outweigh all else.

    **Arguments:** `moments`: before the step, by parameter name; empty before the first.
    """
    if config.name not in SECOND_MOMENT:
        return dict(gradient)
    keep = config.betas[1] if config.name == "adamw" else config.smoothing
    past = future = 1.0  # by which a moment is divided: AdamW's bias correction
    if config.name == "adamw":
        past, future = 1 - keep**step, 1 - keep ** (step + 1)
    gradient_square = sum(g.square().sum(dtype=torch.float64) for g in gradient.values())
    moment_sum = sum(v.sum(dtype=torch.float64) for v in moments.values()) / (past or 1.0)
    scale = float(moment_sum / gradient_square) if moments else 1.0
    moved = {}
    for name, g in gradient.items():
        moment = _after(moments.get(name), scale * g.square(), keep).div(future)
        moved[name] = g / (moment.sqrt() + config.epsilon)
    return moved


def _after(moment: Tensor | None, square: Tensor, keep: float) -> Tensor:
    """`keep v + (1 − keep) g²`."""
    return (1 - keep) * square if moment is None else torch.lerp(square, moment, keep)


def clip_factor(grad_norm: float, clip_norm: float) -> float:
    """Factor by which torch and DeepSpeed scale a gradient of this global norm to clip it."""
    return min(1.0, clip_norm / (grad_norm + CLIP_EPSILON))


class Engine(Protocol):
    """The engine protocol of the training loop. Every method is collective over the ranks."""

    @property
    def logits(self) -> nn.Module:
        """The policy's forward, from a batch to its response logits."""

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of this rank's share of the step's loss (shares add up)."""

    def step(self, learning_rate: float) -> float:
        """Clips, updates, clears the gradient; returns its global norm before clipping."""

    def master_weights(self) -> dict[str, Tensor]:
        """The full fp32 weights on the CPU by parameter name; on rank 0, empty on the others."""

    def gathered(self) -> AbstractContextManager[None]:
        """Context in which every rank holds the full weights and can sample alone."""

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors by parameter and state name, on rank 0; at first empty."""

    def second_moments(self) -> dict[str, Tensor]:
        """The optimizer's second moments by parameter name, on every rank; empty if it has none."""

    def save(self, folder: Path) -> None:
        """Writes this rank's part of weights and optimizer state."""

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, exactly."""


class PlainEngine:
    """One process, torch only: the reference implementation for the DeepSpeed engine.

    **Arguments:**

    - `master`: fp32 weights by name, of a model that is in bf16 itself; default: the model's own.
    """

    def __init__(
        self, logits: ResponseLogits, config: LoopConfig, master: Mapping[str, Tensor] | None = None
    ) -> None:
        self.logits = logits
        self._config = config
        self._named = {name: p for name, p in logits.model.named_parameters() if p.requires_grad}
        self._rounded: dict[str, nn.Parameter] = {}
        if master is not None:
            self._rounded = self._named
            self._named = {n: nn.Parameter(master[n].to(p.device)) for n, p in self._named.items()}
        self._optimizer = build_optimizer(config.optimizer, self._named.values())

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of the loss; that of bf16 weights is added up in fp32."""
        loss.backward()
        for name, weight in self._rounded.items():
            if weight.grad is not None:
                master, gradient = self._named[name], weight.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def step(self, learning_rate: float) -> float:
        """Clips, updates, clears the gradient; returns its norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self._named.values(), self._config.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._follow_master_weights()
        return norm.item()

    def master_weights(self) -> dict[str, Tensor]:
        """The fp32 weights on the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self._named.items()}

    def gathered(self) -> AbstractContextManager[None]:
        """No-op: one process holds the full weights."""
        return nullcontext()

    def optimizer_state(self) -> dict[str, dict[str, Tensor]]:
        """The optimizer's tensors that have the shape of their parameter."""
        return {
            name: {
                key: state[key].detach().to("cpu", copy=True)
                for key in STATE_TENSORS[self._config.optimizer.name]
                if state.get(key) is not None
            }
            for name, p in self._named.items()
            if (state := self._optimizer.state.get(p))
        }

    def second_moments(self) -> dict[str, Tensor]:
        """The optimizer's second moments; empty before its first step."""
        key = SECOND_MOMENT.get(self._config.optimizer.name)
        states = self._optimizer.state
        return {name: states[p][key] for name, p in self._named.items() if key and states.get(p)}

    def save(self, folder: Path) -> None:
        """Writes weights and optimizer state (`dynolab.training.shards`)."""
        save_shard(self._stretches(), self._optimizer, folder)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, on any number of ranks."""
        load_shards(self._stretches(), self._optimizer, folder)
        self._follow_master_weights()

    @torch.no_grad()
    def _follow_master_weights(self) -> None:
        for name, weight in self._rounded.items():
            weight.copy_(self._named[name])

    def _stretches(self) -> list[Stretch]:
        return [Stretch(name, 0, p.numel(), p) for name, p in self._named.items()]
