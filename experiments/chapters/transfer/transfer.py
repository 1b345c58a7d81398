"""Trains heads alone for τ epochs, then finetunes everything; all τ and seeds at once.

Table `transfer`: one row for each task, strategy, τ and seed. Strategies: `linear`, one layer,
probed with hard labels; `smoothed`, probed with smoothed ones; `two_layer`, a head with one hidden
layer; `reinitialised`, one layer, on features whose last layer is drawn anew. All are finetuned
with hard labels. Before finetuning, on its examples: `energy` E‖e_y − p‖₂; `consistency`, the mean
cosine of the feature forces within a class; `mismatch`, the share of the forces' squared size that
classes do not share; `probe_accuracy`. The change by finetuning: the columns of
`task_head.adaptation`. After it: `accuracy` on the second task's test inputs, `elsewhere` on
changed ones, by name of the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dynolab.errors import ConfigError
from experiments.chapters.classifiers.labels import one_hot, smoothed
from experiments.chapters.classifiers.many import (
    Build,
    ManyModels,
    SGDConfig,
    batch_orders,
    seed_for,
    train_many,
)
from experiments.chapters.transfer.task import TransferTask
from experiments.chapters.transfer.task_head import (
    adaptation,
    direction_consistency,
    energy,
    feature_forces,
    mismatch,
)

Weights = dict[str, Tensor]
Strategy = Literal["linear", "smoothed", "two_layer", "reinitialised"]


class ProbingConfig(BaseModel):
    """Gradient descent on the head only."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    learning_rate: float = Field(0.1, gt=0)
    batch_size: int = Field(20, ge=1, description="Examples per step.")

    def schedule(self, epochs: int) -> SGDConfig:
        """SGD settings for a number of epochs."""
        return SGDConfig(
            learning_rate=self.learning_rate, batch_size=self.batch_size, epochs=epochs
        )


class TransferConfig(BaseModel):
    """Pretraining, probing and finetuning."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pretraining: SGDConfig = Field(
        SGDConfig(learning_rate=0.1, epochs=30), description="Training on the first task."
    )
    examples: int = Field(
        100, ge=4, description="Examples of the second task for probing and finetuning."
    )
    taus: tuple[int, ...] = Field(
        (0, 1, 4, 16, 64, 256), min_length=2, description="Epochs of head probing, rising."
    )
    probing: ProbingConfig = Field(
        ProbingConfig(), description="Training of the head only; taus sets for how long."
    )
    finetuning: SGDConfig = Field(
        SGDConfig(learning_rate=0.1, batch_size=20, epochs=40),
        description="Training of all weights.",
    )
    smoothing: float = Field(
        0.4, gt=0, lt=1, description="ε of the smoothed labels used in probing."
    )
    strategies: tuple[Strategy, ...] = Field(get_args(Strategy), min_length=1)

    @model_validator(mode="after")
    def _check_taus_and_strategies(self) -> TransferConfig:
        if self.taus[0] < 0 or list(self.taus) != sorted(set(self.taus)):
            raise ConfigError("taus", list(self.taus), "give rising numbers of epochs from 0")
        if len(set(self.strategies)) < len(self.strategies) or "linear" not in self.strategies:
            raise ConfigError(
                "strategies",
                list(self.strategies),
                "list each once, and include linear, the baseline",
            )
        return self


def compare_heads(
    build: Build, task: TransferTask, config: TransferConfig, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Pretrains on the first task, then transfers every seed with every strategy and τ.

    **Arguments:** `build`: builds networks with a `body` and a linear `head`.

    **Raises:** `ConfigError` for more examples than the second task has, or a class without any.
    """
    draws = torch.stack([task.draw(config.examples, seed) for seed in seeds])
    shape = tuple(task.first.inputs.shape[1:])
    many = ManyModels([build(shape, task.first_classes, seed) for seed in seeds])
    orders = batch_orders(len(task.first.labels), config.pretraining, seeds)
    hard = one_hot(task.first.labels, task.first_classes)
    for _ in train_many(many, task.first.inputs, hard, orders, config.pretraining):
        pass
    bodies = _submodule_weights(many.weights, "body")
    return [
        row
        for strategy in config.strategies
        for row in _Transfer(build, task, config, seeds, draws, strategy).run(bodies)
    ]


class _Transfer:
    """Runs one strategy with all seeds and τ."""

    def __init__(
        self,
        build: Build,
        task: TransferTask,
        config: TransferConfig,
        seeds: Sequence[int],
        draws: Int[Tensor, "seeds drawn"],
        strategy: Strategy,
    ) -> None:
        self.task, self.config, self.seeds = task, config, seeds
        self.draws, self.strategy = draws, strategy
        shape = tuple(task.pool.inputs.shape[1:])
        fresh = [_network(build, shape, task.classes, seed, strategy) for seed in seeds]
        self.models = fresh
        self.bodies = ManyModels([network.get_submodule("body") for network in fresh])
        self.heads = ManyModels([network.get_submodule("head") for network in fresh])

    def run(self, pretrained: Weights) -> Iterator[dict[str, Any]]:
        """The strategy's rows, from the pretrained body."""
        body = self._initial_body(pretrained)
        heads = self._probe_heads(body)
        # τ first, then seeds.
        bodies = {name: torch.cat([w] * len(heads)) for name, w in body.items()}
        joined = {name: torch.cat([head[name] for head in heads]) for name in heads[0]}
        yield from self._rows(bodies, joined, self._finetune(bodies, joined))

    def _initial_body(self, pretrained: Weights) -> Weights:
        """The pretrained body; with `reinitialised`, its last layer has fresh weights."""
        if self.strategy != "reinitialised":
            return pretrained
        last = list(pretrained)[-1].rpartition(".")[0]
        drawn = self.bodies.weights
        return {
            name: drawn[name] if name.startswith(f"{last}.") else w
            for name, w in pretrained.items()
        }

    def _probe_heads(self, body: Weights) -> list[Weights]:
        """Heads after each τ epochs of training on frozen features."""
        config, classes = self.config, self.task.classes
        features = self._features(body)
        labels = self.task.pool.labels[self.draws].flatten()
        if self.strategy == "smoothed":
            targets = smoothed(labels, classes, config.smoothing)
        else:
            targets = one_hot(labels, classes)
        epochs = config.taus[-1]
        heads = {0: dict(self.heads.weights)} if config.taus[0] == 0 else {}
        if epochs:
            schedule = config.probing.schedule(epochs)
            # Stack every seed's examples as rows of one table.
            shift = config.examples * torch.arange(len(self.seeds))[:, None, None]
            orders = batch_orders(config.examples, schedule, self.seeds) + shift
            per_epoch = orders.shape[1] // epochs
            for step in train_many(self.heads, features.flatten(0, 1), targets, orders, schedule):
                epoch, rest = divmod(step.number, per_epoch)
                if not rest and epoch in config.taus:
                    heads[epoch] = step.after
        return [heads[tau] for tau in config.taus]

    def _features(self, body: Weights) -> Float[Tensor, "models drawn features"]:
        """Features of every model's own training examples."""
        draws = self.draws.repeat(len(next(iter(body.values()))) // len(self.seeds), 1)
        return self.bodies.logits(self.task.pool.inputs[draws], body, own=True)

    def _finetune(self, bodies: Weights, heads: Weights) -> Weights:
        config = self.config
        many = ManyModels(self.models * len(config.taus))
        many.weights = _with_prefix(bodies, "body") | _with_prefix(heads, "head")
        places = batch_orders(config.examples, config.finetuning, self.seeds)
        orders = torch.stack(
            [draw[places_of] for draw, places_of in zip(self.draws, places, strict=True)]
        )
        orders = orders.repeat(len(config.taus), 1, 1)
        targets = one_hot(self.task.pool.labels, self.task.classes)
        for _ in train_many(many, self.task.pool.inputs, targets, orders, config.finetuning):
            pass
        return many.weights

    def _rows(self, bodies: Weights, heads: Weights, after: Weights) -> Iterator[dict[str, Any]]:
        task, classes = self.task, self.task.classes
        copies = len(self.config.taus)
        labels = task.pool.labels[self.draws].repeat(copies, 1)
        before, moved = self._features(bodies), self._features(_submodule_weights(after, "body"))
        head = self.models[0].get_submodule("head")
        logits = vmap(lambda w, h: functional_call(head, w, (h,)))(heads, before)
        forces = vmap(
            lambda w, h, y: feature_forces(lambda f: functional_call(head, w, (f,)), h, y)
        )(heads, before, labels)
        tested = {"": task.test.inputs, **task.elsewhere}
        many = ManyModels(self.models[:1])
        right = {
            name: (many.logits(x, after).argmax(-1) == task.test.labels).float().mean(-1).tolist()
            for name, x in tested.items()
        }
        probe_accuracy = (logits.argmax(-1) == labels).float().mean(-1).tolist()
        for place, (tau, seed) in enumerate(product(self.config.taus, self.seeds)):
            y, f = labels[place], forces[place]
            yield {
                "task": task.name,
                "strategy": self.strategy,
                "tau": tau,
                "seed": seed,
                "energy": float(energy(logits[place], y)),
                "consistency": float(direction_consistency(f, y, classes)),
                "mismatch": float(mismatch(f, y, classes)),
                "probe_accuracy": probe_accuracy[place],
                **adaptation(before[place], moved[place], f),
                "accuracy": right[""][place],
                "elsewhere": {name: right[name][place] for name in task.elsewhere},
            }


def _network(
    build: Build, shape: tuple[int, ...], classes: int, seed: int, strategy: Strategy
) -> nn.Module:
    """A fresh network for the second task; with `two_layer`, its head has a hidden layer.

    Its weights differ from the first network's initial ones: features have adapted to that head,
    and a reinitialised layer would merely return to its old start.
    """
    model = build(shape, classes, seed_for("second task", seed))
    head = model.get_submodule("head")
    if strategy == "two_layer":
        assert isinstance(head, nn.Linear)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for("hidden layer", seed))
            hidden = nn.Linear(head.in_features, head.in_features)
        model.add_module("head", nn.Sequential(hidden, nn.ReLU(), head))
    return model


def _submodule_weights(weights: Weights, name: str) -> Weights:
    """Weights of a submodule, without its prefix in their names."""
    return {
        full.removeprefix(f"{name}."): w
        for full, w in weights.items()
        if full.startswith(f"{name}.")
    }


def _with_prefix(weights: Weights, name: str) -> Weights:
    return {f"{name}.{inner}": w for inner, w in weights.items()}
