"""Many small models of one kind trained at once: one pass for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from dynolab.errors import ConfigError, DynolabError

Loss = Callable[[Float[Tensor, "batch classes"], Float[Tensor, "batch classes"]], Tensor]
"""One model's loss on a batch of logits and targets: one number."""

Build = Callable[[tuple[int, ...], int, int], nn.Module]
"""A network by the shape of an input, the number of classes, and the seed of its weights."""

Stacked = Mapping[str, Tensor]
"""Weights by parameter name, the models along the first axis."""


class SGDConfig(BaseModel):
    """Stochastic gradient descent: `v ← μ v + ∇L + λ w`, `w ← w − η v`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    learning_rate: float = Field(0.1, gt=0, description="η.")
    momentum: float = Field(0.0, ge=0, lt=1, description="μ.")
    weight_decay: float = Field(0.0, ge=0, description="λ.")
    batch_size: int = Field(32, ge=1, description="Examples of one step.")
    epochs: int = Field(20, ge=1, description="Passes over the examples.")

    def check_plain(self, field: str) -> None:
        """**Raises:** `ConfigError` for momentum and decay, by which a step is not its images'."""
        if self.momentum or self.weight_decay:
            raise ConfigError(
                field,
                {"momentum": self.momentum, "decay": self.weight_decay},
                "the forces told are those of a step's own images: both must be 0",
            )


@dataclass(frozen=True)
class ManyStep:
    """One step of all models.

    - `number`: steps done, from 1; `rows`: the examples of the step.
    - `logits`, `losses`: on those, before the update.
    - `before`, `after`: the weights around it. They are never written to: keep what you need.
    """

    number: int
    rows: Int[Tensor, "*models batch"]
    logits: Float[Tensor, "models batch classes"]
    losses: Float[Tensor, " models"]
    before: dict[str, Tensor]
    after: dict[str, Tensor]


class ManyModels:
    """Models of one architecture, their weights stacked; `module` computes what all do.

    **Arguments:** `models`: of equal architecture, without buffers; they are left as they are.

    **Raises:** `ConfigError` for no model, models that differ, or buffers, such as batch norm's
    running statistics, which vmap cannot change.
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
        """Where the weights are."""
        return next(iter(self.weights.values())).device

    def __len__(self) -> int:
        return len(next(iter(self.weights.values())))

    def logits(
        self, inputs: Tensor, weights: Stacked | None = None, *, own: bool = False
    ) -> Float[Tensor, "models examples classes"]:
        """Logits of all models at their weights, or at others.

        **Arguments:** `own`: the inputs have the models along their first axis; default: all
        models see the same ones.
        """
        logits: Tensor = vmap(
            lambda w, x: functional_call(self.module, w, (x,)), (0, 0 if own else None)
        )(dict(self.weights if weights is None else weights), inputs)
        return logits

    def model(self, index: int, weights: Stacked | None = None) -> nn.Module:
        """One of the models, a module of its own."""
        made = deepcopy(self.module)
        chosen = self.weights if weights is None else weights
        made.load_state_dict({name: w[index].clone() for name, w in chosen.items()})
        return made


def cross_entropy(
    logits: Float[Tensor, "batch classes"], targets: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """`−Σ_k t_k log p_k`, mean over the batch, in nats."""
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def batch_order(examples: int, config: SGDConfig, seed: int) -> Int[Tensor, "steps batch"]:
    """The examples of every step, each epoch in an order of its own.

    A last batch that is not full is left out, so that all steps are alike.

    **Raises:** `ConfigError` where the examples do not fill one batch.
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
    """`batch_order` of every seed."""
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
    all_must_last: bool = True,
) -> Iterator[ManyStep]:
    """Trains all models by SGD, step by step; each becomes what it would become alone.

    Takes a step whenever the next is asked for, and leaves the weights in `many.weights`: a loop
    over it looks at whatever it likes, at any step, and may end early.

    **Arguments:**

    - `targets`: probabilities of the classes: the models' own, or the same for all.
    - `orders`: examples of every step (`batch_order`): the models' own, or the same for all,
      which is faster.
    - `loss`: of one model on its batch.
    - `learning_rates`: the models' own, in place of the config's.
    - `all_must_last`: False: a model that diverges goes on as no number, the others as if it
      were not there.

    **Raises:** `DynolabError` where a model's loss is no number and all must last.
    """
    own = orders.dim() == 3
    if orders.shape[:-2] not in ((), (len(many),)) or targets.shape[:-2] not in ((), (len(many),)):
        raise ConfigError(
            "orders, targets",
            (tuple(orders.shape), tuple(targets.shape)),
            f"give one for all models, or one for each of the {len(many)}",
        )
    orders = orders.to(inputs.device)
    rates = _rates(many, config, learning_rates)
    velocity = {name: torch.zeros_like(w) for name, w in many.weights.items()}
    for number in range(orders.shape[-2]):
        rows = orders[..., number, :]
        batch = inputs[rows]
        wanted = _of_rows(targets, rows)
        before = many.weights
        leaves = {name: w.detach().requires_grad_() for name, w in before.items()}
        with torch.enable_grad():
            logits = many.logits(batch, leaves, own=own)
            losses = vmap(loss, (0, 0 if wanted.dim() == 3 else None))(logits, wanted)
            gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))
        losses = losses.detach()
        if all_must_last and not bool(losses.isfinite().all()):
            bad = (~losses.isfinite()).nonzero().flatten().tolist()
            raise DynolabError(
                f"step {number}: the loss of model {', '.join(map(str, bad))} is no number; lower "
                "the learning rate"
            )
        with torch.no_grad():
            for (name, w), gradient in zip(before.items(), gradients, strict=True):
                pull = gradient + config.weight_decay * w if config.weight_decay else gradient
                velocity[name] = config.momentum * velocity[name] + pull
            many.weights = {name: w - rates[name] * velocity[name] for name, w in before.items()}
        yield ManyStep(number + 1, rows, logits.detach(), losses, before, many.weights)


def _rates(
    many: ManyModels, config: SGDConfig, own: Float[Tensor, " models"] | None
) -> dict[str, Float[Tensor, "*models"]]:
    """Learning rates by parameter name, each to be multiplied with its stacked weights."""
    if own is None:
        return {name: w.new_tensor(config.learning_rate) for name, w in many.weights.items()}
    return {name: own.to(w).view(-1, *[1] * (w.dim() - 1)) for name, w in many.weights.items()}


def _of_rows(
    targets: Float[Tensor, "*models examples classes"], rows: Int[Tensor, "*models batch"]
) -> Float[Tensor, "*models batch classes"]:
    """Targets of the rows; the models' own where either is."""
    if targets.dim() == 2:
        return targets[rows]
    if rows.dim() == 1:
        return targets[:, rows]
    return targets.gather(1, rows[..., None].expand(-1, -1, targets.shape[-1]))
