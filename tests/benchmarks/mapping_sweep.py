"""All 256 mappings of four objects with eight seeds: trained together, and one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from dynolab.chapters.classifiers.many import SGDConfig, train_many
from dynolab.chapters.simplicity.mappings import all_mappings, one_hot
from dynolab.chapters.simplicity.rows import SpaceName
from dynolab.chapters.simplicity.sweep import message_loss, message_network, networks

SPACE, SEEDS = SpaceName(attributes=2, values=2), range(8)
WIDTH, STEPS = 32, 25
SGD = SGDConfig(learning_rate=0.5, batch_size=SPACE.objects)
INPUTS = torch.from_numpy(one_hot(SPACE, range(SPACE.objects)))
WHOLE_BATCH = torch.arange(SPACE.objects).expand(STEPS, -1)


def together() -> Tensor:
    """Losses [steps, mappings, seeds], all networks in one pass."""
    mappings = all_mappings(SPACE)
    targets, many = networks(SPACE, mappings, SEEDS, WIDTH)
    steps = train_many(many, INPUTS, targets, WHOLE_BATCH, SGD, loss=message_loss(SPACE))
    return torch.stack([step.losses.view(len(mappings), len(SEEDS)) for step in steps])


def one_after_another() -> Tensor:
    """The same by a plain loop of torch's SGD over one network at a time."""
    loss, runs = message_loss(SPACE), []
    for mapping in all_mappings(SPACE):
        targets = torch.from_numpy(one_hot(SPACE, mapping))
        for seed in SEEDS:
            network = message_network(SPACE, WIDTH, seed)
            optimizer = torch.optim.SGD(network.parameters(), lr=SGD.learning_rate)
            losses = []
            for _ in range(STEPS):
                optimizer.zero_grad()
                value = loss(network(INPUTS), targets)
                value.backward()
                optimizer.step()
                losses.append(value.detach())
            runs.append(torch.stack(losses))
    return torch.stack(runs, 1).view(STEPS, -1, len(SEEDS))
