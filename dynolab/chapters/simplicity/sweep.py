"""Trains a small network on every mapping with every seed at once, and measures every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from dynolab.chapters.classifiers.many import Loss, ManyModels, SGDConfig, Stacked, train_many
from dynolab.chapters.simplicity.mappings import (
    Messages,
    coding_length,
    kind_of,
    one_hot,
    sharing_pairs,
    topographic_similarity,
)
from dynolab.chapters.simplicity.rows import KindPath, LearnedMapping, Paths, SpaceName


def message_network(space: SpaceName, width: int, seed: int) -> nn.Module:
    """One-hot attributes → one hidden tanh layer → logits of m letters."""
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
    """Measurements of every mapping and seed.

    `losses[t]`, in nats per object, and `cooperation[t]` are taken before step t.
    """

    losses: Float[Tensor, "steps mappings seeds"]
    final: Float[Tensor, "mappings seeds"]
    cooperation: Float[Tensor, "steps mappings seeds"]


def sweep(
    space: SpaceName,
    mappings: Sequence[Messages],
    seeds: Sequence[int],
    *,
    width: int,
    learning_rate: float,
    steps: int,
) -> Sweep:
    """Full-batch gradient descent on all mappings with all seeds together.

    Each seed gives one set of initial weights, the same for every mapping.
    """
    inputs = torch.from_numpy(one_hot(space, range(space.objects)))
    targets, many = networks(space, mappings, seeds, width)
    sharing = torch.from_numpy(sharing_pairs(space))
    shape = (len(mappings), len(seeds))
    loss = message_loss(space)
    losses, cooperation = [], []
    whole_batch = torch.arange(space.objects).expand(steps, -1)
    sgd = SGDConfig(learning_rate=learning_rate, batch_size=space.objects)
    for step in train_many(many, inputs, targets, whole_batch, sgd, loss=loss):
        losses.append(step.losses.view(shape))
        products = letter_products(space, step.before, inputs, targets)
        cooperation.append(products[..., sharing].mean((1, 2)).view(shape))
    with torch.no_grad():
        final = vmap(loss)(many.logits(inputs), targets).view(shape)
    return Sweep(torch.stack(losses), final, torch.stack(cooperation))


def networks(
    space: SpaceName, mappings: Sequence[Messages], seeds: Sequence[int], width: int
) -> tuple[Float[Tensor, "models objects letters"], ManyModels]:
    """Targets and networks, ordered by mapping, then by seed."""
    starts = [message_network(space, width, seed) for seed in seeds]
    targets = torch.stack([torch.from_numpy(one_hot(space, mapping)) for mapping in mappings])
    return targets.repeat_interleave(len(seeds), 0), ManyModels(starts * len(mappings))


def letter_products(
    space: SpaceName,
    weights: Stacked,
    inputs: Float[Tensor, "objects letters"],
    targets: Float[Tensor, "models objects letters"],
) -> Float[Tensor, "models places objects objects"]:
    """`⟨∇ℓ_o, ∇ℓ_u⟩` of the letter losses at each place, for every stacked `message_network`.

    A small step on the letter of object u lowers the loss of o's letter by η times this. With
    `z = W₂ h + b₂`, `h = tanh(W₁ x + b₁)`, the force G on the letter's logits, and
    `δ = (W₂ᵀ G) (1 − h²)`, it is `G_o·G_u (h_o·h_u + 1) + δ_o·δ_u (x_o·x_u + 1)`: the kernel
    between two objects times the forces on them.
    """
    into, bias, out, out_bias = (
        weights[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    )
    hidden = (inputs @ into.mT + bias[:, None]).tanh()
    logits = (hidden @ out.mT + out_bias[:, None]).unflatten(-1, (space.attributes, space.values))
    force = logits.softmax(-1) - targets.unflatten(-1, (space.attributes, space.values))
    force = force.transpose(1, 2)  # models, places, objects, values
    back = force @ out.unflatten(1, (space.attributes, space.values))
    back = back * (1 - hidden.square())[:, None]
    head = (force @ force.mT) * (hidden @ hidden.mT + 1)[:, None]
    return head + (back @ back.mT) * (inputs @ inputs.mT + 1)


def learned(
    space: SpaceName, mappings: Sequence[Messages], measured: Sweep
) -> list[LearnedMapping]:
    """Result rows of a sweep, one per mapping."""
    area, cooperation = measured.losses.mean(0), measured.cooperation.mean(0)
    rows = []
    for index, mapping in enumerate(mappings):
        kind = kind_of(space, mapping)
        row = LearnedMapping(
            space=space,
            messages=mapping,
            kind=kind,
            distinct=len(set(mapping)),
            bits=coding_length(space, kind),
            similarity=topographic_similarity(space, mapping),
            area=tuple(area[index].tolist()),
            final=tuple(measured.final[index].tolist()),
            start_cooperation=tuple(measured.cooperation[0, index].tolist()),
            cooperation=tuple(cooperation[index].tolist()),
        )
        rows.append(row)
    return rows


def kind_paths(rows: Sequence[LearnedMapping], measured: Sweep) -> Iterator[KindPath]:
    """Means over the mappings of each kind, by step; losses end with that after the last step."""
    losses = torch.cat([measured.losses, measured.final[None]])

    def means(values: Float[Tensor, "steps mappings seeds"], members: list[int]) -> Paths:
        return tuple(tuple(path.tolist()) for path in values[:, members].mean(1).T)

    for kind in dict.fromkeys(row.kind for row in rows):
        members = [index for index, row in enumerate(rows) if row.kind == kind]
        yield KindPath(
            space=rows[0].space,
            kind=kind,
            losses=means(losses, members),
            cooperation=means(measured.cooperation, members),
        )
