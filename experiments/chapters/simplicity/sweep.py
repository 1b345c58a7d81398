"""Trains a small network on every mapping with every seed at once, and measures every step.

Tables, in which lists hold one number, or one path, for each seed:

- `mappings`: one row for each mapping of a `space`. `messages`: the message of every object, both
  numbered in base v, first attribute first; `distinct`: how many different ones; `kind`; `bits`:
  the coding length of the kind, None for maps that are not bijections; `similarity`: topographic
  similarity, NaN for a constant map; `area`: mean loss over the steps of training, and `final`:
  loss after them, in nats per object. `start_cooperation`: before training, the mean of `⟨∇ℓ_o,
  ∇ℓ_u⟩` over letter positions and over the pairs o ≠ u that share an attribute, ℓ the loss of the
  letter at that position; `cooperation`: its mean over the steps of training. Over all pairs that
  mean would say little: where every letter is used equally often, the forces on the logits add up
  to zero at the start, so that a kernel that is the same for all pairs adds `−a Σ_o ‖G_o‖²`,
  for every mapping.
- `paths`: means over the mappings of a kind by step, one path for each seed: `losses` in nats per
  object, one more than steps, and `cooperation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from experiments.chapters.classifiers.many import Loss, ManyModels, SGDConfig, Stacked, train_many
from experiments.chapters.simplicity.mappings import (
    Messages,
    SpaceName,
    coding_length,
    kind_of,
    one_hot,
    sharing_pairs,
    topographic_similarity,
)


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
) -> list[dict[str, Any]]:
    """Rows of `mappings`."""
    area, cooperation = measured.losses.mean(0), measured.cooperation.mean(0)
    rows = []
    for index, mapping in enumerate(mappings):
        kind = kind_of(space, mapping)
        rows.append(
            {
                "space": space.model_dump(),
                "messages": mapping,
                "kind": kind,
                "distinct": len(set(mapping)),
                "bits": coding_length(space, kind),
                "similarity": topographic_similarity(space, mapping),
                "area": area[index].tolist(),
                "final": measured.final[index].tolist(),
                "start_cooperation": measured.cooperation[0, index].tolist(),
                "cooperation": cooperation[index].tolist(),
            }
        )
    return rows


def kind_paths(rows: Sequence[Mapping[str, Any]], measured: Sweep) -> Iterator[dict[str, Any]]:
    """Rows of `paths`; losses end with that after the last step."""
    losses = torch.cat([measured.losses, measured.final[None]])
    for kind in dict.fromkeys(row["kind"] for row in rows):
        members = [index for index, row in enumerate(rows) if row["kind"] == kind]
        yield {
            "space": rows[0]["space"],
            "kind": kind,
            "losses": losses[:, members].mean(1).T.tolist(),
            "cooperation": measured.cooperation[:, members].mean(1).T.tolist(),
        }
