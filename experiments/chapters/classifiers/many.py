"""Trains many small models of one architecture at once, in one vectorised pass."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from dynolab.errors import ConfigError, DynolabError

Loss = Callable[[Float[Tensor, "batch classes"], Float[Tensor, "batch classes"]], Tensor]
"""Scalar loss of one model, from a batch of logits and targets."""

Build = Callable[[tuple[int, ...], int, int], nn.Module]
"""Builds a network from the input shape, the number of classes, and the seed of its weights."""

Stacked = Mapping[str, Tensor]
"""Weights by parameter name, stacked over models along the first axis."""


class SGDConfig(BaseModel):
    """Stochastic gradient descent: `v ← μ v + ∇L + λ w`, `w ← w − η v`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    learning_rate: float = Field(0.1, gt=0, description="η.")
    momentum: float = Field(0.0, ge=0, lt=1, description="μ.")
    weight_decay: float = Field(0.0, ge=0, description="λ.")
    batch_size: int = Field(32, ge=1, description="Examples per step.")
    epochs: int = Field(20, ge=1, description="Passes over the examples.")

    def check_plain(self, field: str) -> None:
        """**Raises:** `ConfigError` for momentum or decay: forces need plain SGD steps."""
        if self.momentum or self.weight_decay:
            raise ConfigError(
                field,
                {"momentum": self.momentum, "decay": self.weight_decay},
                "both must be 0: forces are computed from each step's own images",
            )


@dataclass(frozen=True)
class ManyStep:
    """One step of all models.

    - `number`: counts steps from 1; `rows`: the examples of the step.
    - `logits`, `losses`: on these examples, before the update.
    - `before`, `after`: weights before and after the update; never modified, so safe to keep.
    """

    number: int
    rows: Int[Tensor, "*models batch"]
    logits: Float[Tensor, "models batch classes"]
    losses: Float[Tensor, " models"]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


class ManyModels:
    """Models of one architecture with stacked weights; `module` is the forward that all share.

    **Arguments:** `models`: of equal architecture, without buffers; not modified.

    **Raises:** `ConfigError` for an empty list, models that differ, or buffers, such as batch
    norm's running statistics, which vmap cannot change.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise ConfigError("models", [], "give at least one")
        shapes = [{n: p.shape for n, p in model.named_parameters()} for model in models]
        if any(shape != shapes[0] for shape in shapes):
            raise ConfigError(
                "models",
                sorted({type(model).__name__ for model in models}),
                "models that train together must have the same parameters",
            )
        weights, buffers = stack_module_state(list(models))
        if buffers:
            raise ConfigError(
                "models", sorted(buffers), "these buffers cannot change under vmap; use group norm"
            )
        self.weights: dict[str, Tensor] = {name: w.detach() for name, w in weights.items()}
        self.module = deepcopy(models[0]).eval()

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(iter(self.weights.values())).device

    def __len__(self) -> int:
        return len(next(iter(self.weights.values())))

    def logits(
        self, inputs: Tensor, weights: Stacked | None = None, *, own: bool = False
    ) -> Float[Tensor, "models examples classes"]:
        """Logits of all models at their own weights, or at the weights given.

        **Arguments:** `own`: the first axis of `inputs` is over models; otherwise all models
        see the same inputs.
        """
        logits: Tensor = vmap(
            lambda w, x: functional_call(self.module, w, (x,)), (0, 0 if own else None)
        )(dict(self.weights if weights is None else weights), inputs)
        return logits

    def model(self, index: int, weights: Stacked | None = None) -> nn.Module:
        """Copies one of the models into a separate module."""
        module = deepcopy(self.module)
        chosen = self.weights if weights is None else weights
        module.load_state_dict({name: w[index].clone() for name, w in chosen.items()})
        return module


def cross_entropy(
    logits: Float[Tensor, "batch classes"], targets: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """`−Σ_k t_k log p_k`, mean over the batch, in nats."""
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def batch_order(examples: int, config: SGDConfig, seed: int) -> Int[Tensor, "steps batch"]:
    """The examples of every step, shuffled anew in each epoch.

    An incomplete last batch is left out, so that all steps have the same size.

    **Raises:** `ConfigError` if the examples do not fill one batch.
    """
    batches = examples // config.batch_size
    if batches == 0:
        raise ConfigError(
            "batch_size", config.batch_size, f"there are {examples} examples; lower it"
        )
    generator = torch.Generator().manual_seed(seed)
    epochs = [
        torch.randperm(examples, generator=generator)[: batches * config.batch_size]
        for _ in range(config.epochs)
    ]
    return torch.cat(epochs).view(-1, config.batch_size)


def batch_orders(
    examples: int, config: SGDConfig, seeds: Sequence[int]
) -> Int[Tensor, "seeds steps batch"]:
    """`batch_order` for every seed."""
    return torch.stack([batch_order(examples, config, seed) for seed in seeds])


def train_many(
    many: ManyModels,
    inputs: Float[Tensor, "examples ..."],
    targets: Float[Tensor, "*own_targets examples classes"],
    orders: Int[Tensor, "*own_orders steps batch"],
    config: SGDConfig,
    *,
    loss: Loss = cross_entropy,
    learning_rates: Float[Tensor, " models"] | None = None,
    raise_on_divergence: bool = True,
) -> Iterator[ManyStep]:
    """Trains all models by SGD, step by step; each ends as it would if trained alone.

    Each iteration takes one step and updates `many.weights`, so a loop can inspect any step and
    may end early.

    **Arguments:**

    - `targets`: class probabilities, one set per model or one for all.
    - `orders`: examples of every step (`batch_order`), one order per model or one for all, which
      is faster.
    - `loss`: loss of one model on its batch.
    - `learning_rates`: one per model, in place of the config's.
    - `raise_on_divergence`: if false, a model that diverges continues with NaN weights; the others
      are unaffected.

    **Raises:** `DynolabError` for a loss that is not finite, if `raise_on_divergence`.
    """
    has_orders = orders.dim() == 3
    if orders.shape[:-2] not in ((), (len(many),)) or targets.shape[:-2] not in ((), (len(many),)):
        raise ConfigError(
            "orders, targets",
            (tuple(orders.shape), tuple(targets.shape)),
            f"give one for all models, or one for each of the {len(many)}",
        )
    orders = orders.to(inputs.device)
    rates = torch.tensor(config.learning_rate) if learning_rates is None else learning_rates
    velocity = {name: torch.zeros_like(w) for name, w in many.weights.items()}
    for number in range(orders.shape[-2]):
        rows = orders[..., number, :]
        batch = inputs[rows]
        batch_targets = _select_targets(targets, rows)
        before = many.weights
        leaves = {name: w.detach().requires_grad_() for name, w in before.items()}
        with torch.enable_grad():
            logits = many.logits(batch, leaves, own=has_orders)
            losses = vmap(loss, (0, 0 if batch_targets.dim() == 3 else None))(logits, batch_targets)
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        losses = losses.detach()
        if raise_on_divergence and not bool(losses.isfinite().all()):
            bad = (~losses.isfinite()).nonzero().flatten().tolist()
            raise DynolabError(
                f"step {number}: the loss of model {', '.join(map(str, bad))} is not finite; "
                "lower the learning rate"
            )
        with torch.no_grad():
            for (name, w), gradient in zip(before.items(), gradients, strict=True):
                pull = gradient + config.weight_decay * w if config.weight_decay else gradient
                velocity[name] = config.momentum * velocity[name] + pull
            many.weights = {
                name: w - _per_model(rates.to(w), w) * velocity[name] for name, w in before.items()
            }
        yield ManyStep(number + 1, rows, logits.detach(), losses, before, many.weights)


def _per_model(rates: Float[Tensor, "*models"], weight: Tensor) -> Tensor:
    """The rates, shaped to broadcast over a stacked weight."""
    return rates.view(*rates.shape, *[1] * (weight.dim() - 1)) if rates.dim() else rates


def _select_targets(
    targets: Float[Tensor, "*models examples classes"], rows: Int[Tensor, "*models batch"]
) -> Float[Tensor, "*models batch classes"]:
    """Selects the rows' targets; one set per model if either argument has a model axis."""
    if targets.dim() == 2:
        return targets[rows]
    if rows.dim() == 1:
        return targets[:, rows]
    return targets.gather(1, rows[..., None].expand(-1, -1, targets.shape[-1]))


def seed_for(purpose: str, seed: int) -> int:
    """Derives a separate seed for each random draw of a run, by its purpose.

    Draws that share a seed are not independent: they give the same permutation of N examples, and
    the same weights to networks of equal layers.
    """
    return int(np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)[0])
