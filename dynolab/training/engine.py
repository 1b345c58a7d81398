"""Engines hold the weights and the optimizer and run steps for the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.training.config import LoopConfig
from dynolab.training.optimizer import SECOND_MOMENT, STATE_TENSORS, build_optimizer
from dynolab.training.shards import Stretch, load_shards, save_shard


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
                held, own = self._named[name], weight.grad.float()
                held.grad = own if held.grad is None else held.grad.add_(own)
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
