"""Trains a small network on every mapping with every seed, all at once, and measures the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dynolab.classification.many import Loss, ManyModels, SGDConfig, train_many
from dynolab.classification.mappings import (
    Messages,
    coding_length,
    kind_of,
    one_hot,
    topographic_similarity,
)
from dynolab.data.mapping_results import LearnedMapping, LossPath, SpaceName


def message_network(space: SpaceName, width: int, seed: int) -> nn.Module:
    """From one-hot attributes through one hidden layer to logits of m letters."""
    letters = space.attributes * space.values
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(letters, width), nn.Tanh(), nn.Linear(width, letters))


def message_loss(space: SpaceName) -> Loss:
    """`−Σ_letters log p(letter)`, mean over the objects, in nats."""

    def loss(
        logits: Float[Tensor, "objects letters"], targets: Float[Tensor, "objects letters"]
    ) -> Float[Tensor, ""]:
        shape = (*logits.shape[:-1], space.attributes, space.values)
        logp = logits.reshape(shape).log_softmax(-1).reshape(logits.shape)
        return -(targets * logp).sum(-1).mean()

    return loss


@dataclass(frozen=True)
class Sweep:
    """What was measured of every mapping and seed.

    `losses[t]` is before step t, in nats per object; `own` and `others` as in `LearnedMapping`.
    """

    losses: Float[Tensor, "steps mappings seeds"]
    final: Float[Tensor, "mappings seeds"]
    start_influence: Float[Tensor, "mappings seeds"]
    own: Float[Tensor, "mappings seeds"]
    others: Float[Tensor, "mappings seeds"]


def sweep(
    space: SpaceName, mappings: Sequence[Messages], seeds: Sequence[int], *,
    width: int, learning_rate: float, steps: int,
) -> Sweep:  # fmt: skip
    """Full-batch gradient descent on all mappings with all seeds together.

    A seed stands for one set of initial weights, the same for every mapping.
    """
    inputs = torch.from_numpy(one_hot(space, range(space.objects)))
    targets, many = _models(space, mappings, seeds, width)
    shape = (len(mappings), len(seeds))
    own, others, losses = torch.zeros(shape), torch.zeros(shape), []
    start = torch.zeros(0)
    network, loss = message_network(space, width, 0), message_loss(space)
    for step in train_many(
        many, inputs, targets, _whole_batch(space, steps), _sgd(space, learning_rate), loss=loss
    ):
        itself, between = influences(network, step.before, inputs, targets, loss)
        if step.number == 1:
            start = between.view(shape)
        # A step lowers ℓ_o by η/N Σ_u ⟨∇ℓ_o, ∇ℓ_u⟩.
        own += learning_rate / space.objects * itself.view(shape)
        others += learning_rate / space.objects * (space.objects - 1) * between.view(shape)
        losses.append(step.losses.view(shape))
    with torch.no_grad():
        final = vmap(loss)(many.logits(inputs), targets).view(shape)
    return Sweep(torch.stack(losses), final, start, own, others)


def train_together(
    space: SpaceName, mappings: Sequence[Messages], seeds: Sequence[int], *,
    width: int, learning_rate: float, steps: int,
) -> Float[Tensor, "steps mappings seeds"]:  # fmt: skip
    """The losses of `sweep` alone."""
    inputs = torch.from_numpy(one_hot(space, range(space.objects)))
    targets, many = _models(space, mappings, seeds, width)
    trained = train_many(
        many, inputs, targets, _whole_batch(space, steps), _sgd(space, learning_rate),
        loss=message_loss(space),
    )  # fmt: skip
    return torch.stack([one.losses.view(len(mappings), len(seeds)) for one in trained])


def _models(
    space: SpaceName, mappings: Sequence[Messages], seeds: Sequence[int], width: int
) -> tuple[Float[Tensor, "models objects letters"], ManyModels]:
    """Targets and networks, seeds of one mapping after each other."""
    starts = [message_network(space, width, seed) for seed in seeds]
    wanted = torch.stack([torch.from_numpy(one_hot(space, one)) for one in mappings])
    return wanted.repeat_interleave(len(seeds), 0), ManyModels(starts * len(mappings))


def _whole_batch(space: SpaceName, steps: int) -> Tensor:
    return torch.arange(space.objects).expand(steps, -1)


def _sgd(space: SpaceName, learning_rate: float) -> SGDConfig:
    return SGDConfig(learning_rate=learning_rate, batch_size=space.objects)


def influences(
    network: nn.Module, weights: dict[str, Tensor], inputs: Float[Tensor, "objects letters"],
    targets: Float[Tensor, "models objects letters"], loss: Loss,
) -> tuple[Float[Tensor, models], Float[Tensor, models]]:  # fmt: skip
    """Means of `⟨∇ℓ_o, ∇ℓ_u⟩` over o = u and over pairs o ≠ u, of every stacked model.

    The N × N matrix is not needed: `Σ_{o,u} ⟨∇ℓ_o, ∇ℓ_u⟩ = ‖Σ_o ∇ℓ_o‖²`.
    """

    def one(own: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        return loss(functional_call(network, own, (x[None],)), target[None])

    each = vmap(vmap(grad(one), (None, 0, 0)), (0, None, 0))(weights, inputs, targets)
    flat = torch.cat([g.flatten(2) for g in each.values()], dim=2)
    objects = inputs.shape[0]
    itself = flat.square().sum((1, 2))
    every = flat.sum(1).square().sum(1)
    return itself / objects, (every - itself) / (objects * (objects - 1))


def learned(
    space: SpaceName, mappings: Sequence[Messages], found: Sweep
) -> list[LearnedMapping]:  # fmt: skip
    """The rows of a sweep."""
    area = found.losses.mean(0)
    rows = []
    for index, mapping in enumerate(mappings):
        kind = kind_of(space, mapping)
        rows.append(
            LearnedMapping(
                space=space, messages=mapping, kind=kind, distinct=len(set(mapping)),
                bits=coding_length(space, kind),
                similarity=topographic_similarity(space, mapping),
                area=tuple(area[index].tolist()), final=tuple(found.final[index].tolist()),
                start_influence=tuple(found.start_influence[index].tolist()),
                own=tuple(found.own[index].tolist()), others=tuple(found.others[index].tolist()),
            )
        )  # fmt: skip
    return rows


def loss_paths(rows: Sequence[LearnedMapping], found: Sweep) -> Iterator[LossPath]:
    """The mean loss of every kind by step, the loss after the last step at the end."""
    losses = torch.cat([found.losses, found.final[None]])
    for kind in dict.fromkeys(row.kind for row in rows):
        members = [index for index, row in enumerate(rows) if row.kind == kind]
        means = losses[:, members].mean(1)
        paths = tuple(tuple(path.tolist()) for path in means.T)
        yield LossPath(space=rows[0].space, kind=kind, losses=paths)
