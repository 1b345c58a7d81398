"""All 256 mappings of four objects with eight seeds: trained together, and one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from dynolab.chapters.simplicity.mappings import all_mappings, one_hot
from dynolab.chapters.simplicity.sweep import message_loss, message_network, train_together
from dynolab.results.simplicity import SpaceName

SPACE, SEEDS = SpaceName(attributes=2, values=2), range(8)
WIDTH, LEARNING_RATE, STEPS = 32, 0.5, 25


def together() -> Tensor:
    """Losses [steps, mappings, seeds], all networks in one pass."""
    return train_together(
        SPACE, all_mappings(SPACE), SEEDS, width=WIDTH, learning_rate=LEARNING_RATE, steps=STEPS
    )


def one_after_another() -> Tensor:
    """The same by a plain loop of torch's SGD over one network at a time."""
    inputs, loss = torch.from_numpy(one_hot(SPACE, range(SPACE.objects))), message_loss(SPACE)
    found = []
    for mapping in all_mappings(SPACE):
        targets = torch.from_numpy(one_hot(SPACE, mapping))
        for seed in SEEDS:
            network = message_network(SPACE, WIDTH, seed)
            optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
            losses = []
            for _ in range(STEPS):
                optimizer.zero_grad()
                value = loss(network(inputs), targets)
                value.backward()
                optimizer.step()
                losses.append(value.detach())
            found.append(torch.stack(losses))
    return torch.stack(found, 1).view(STEPS, -1, len(SEEDS))
