"""Mappings, their kinds and measures, and their learning against one network at a time."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations, product

import numpy as np
import pytest
import torch

from dynolab.classification.mapping_claims import correlation, difference, mapping_verdicts
from dynolab.classification.mapping_sweep import (
    learned,
    loss_paths,
    message_loss,
    message_network,
    sweep,
    train_together,
)
from dynolab.classification.mappings import (
    all_mappings,
    coding_length,
    composed,
    compositional_count,
    kind_of,
    one_hot,
    sampled_bijections,
    topographic_similarity,
)
from dynolab.data.mapping_results import SpaceName
from dynolab.errors import ConfigError

SMALL = SpaceName(attributes=2, values=2)
IDENTITY, CONSTANT, HOLISTIC = (0, 1, 2, 3), (0, 0, 0, 0), (0, 1, 3, 2)


def test_the_256_maps_of_four_objects_fall_into_their_kinds() -> None:
    kinds = Counter(kind_of(SMALL, one) for one in all_mappings(SMALL))
    assert kinds == {"degenerate": 232, "holistic": 16, "compositional": 8}


@pytest.mark.parametrize(("attributes", "values", "count"), [(2, 2, 8), (3, 2, 48), (2, 3, 72)])
def test_there_are_as_many_compositional_mappings_as_renamings(
    attributes: int, values: int, count: int
) -> None:
    space = SpaceName(attributes=attributes, values=values)
    names = list(permutations(range(values)))
    found = {
        composed(space, order, chosen)
        for order in permutations(range(attributes))
        for chosen in product(names, repeat=attributes)
    }
    assert len(found) == compositional_count(space) == count
    assert {kind_of(space, one) for one in found} == {"compositional"}
    assert all(topographic_similarity(space, one) == pytest.approx(1.0) for one in found)


def test_coding_lengths_are_the_logarithms_of_the_counts() -> None:
    space = SpaceName(attributes=3, values=2)
    assert coding_length(space, "compositional") == pytest.approx(math.log2(48))
    assert coding_length(space, "holistic") == pytest.approx(math.log2(math.factorial(8)))
    assert coding_length(space, "degenerate") is None


def test_topographic_similarity_is_the_rank_correlation_of_distances() -> None:
    # Two letters exchanged in one row: the distances of pairs are (1, 1, 2, 2, 1, 1) for objects.
    objects, messages = np.array([1, 1, 2, 2, 1, 1]), np.array([1, 2, 1, 1, 2, 1])
    expected = np.corrcoef(objects, messages)[0, 1]
    assert topographic_similarity(SMALL, HOLISTIC) == pytest.approx(expected)
    assert math.isnan(topographic_similarity(SMALL, CONSTANT))


def test_objects_are_one_hot_blocks_of_their_attributes() -> None:
    assert one_hot(SMALL, [2]).tolist() == [[0, 1, 1, 0]]


def test_sampled_bijections_are_half_compositional_and_all_different() -> None:
    space = SpaceName(attributes=2, values=3)
    found = sampled_bijections(space, 20, seed=1)
    assert found == sampled_bijections(space, 20, seed=1) != sampled_bijections(space, 20, seed=2)
    assert len(set(found)) == 40
    kinds = Counter(kind_of(space, one) for one in found)
    assert kinds == {"compositional": 20, "holistic": 20}


def test_impossible_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose 1 to 8"):
        sampled_bijections(SMALL, 9, seed=0)
    with pytest.raises(ConfigError, match="give a number of sampled bijections"):
        all_mappings(SpaceName(attributes=3, values=2))


def alone(mapping: tuple[int, ...], seed: int, steps: int) -> list[float]:
    """Losses of one network trained by itself."""
    network, loss = message_network(SMALL, 8, seed), message_loss(SMALL)
    x, target = (torch.from_numpy(one_hot(SMALL, one)) for one in (range(4), mapping))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(network(x), target)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def test_together_every_mapping_and_seed_learns_as_it_would_alone() -> None:
    mappings, seeds = (IDENTITY, CONSTANT, HOLISTIC), (3, 5)
    losses = train_together(SMALL, mappings, seeds, width=8, learning_rate=0.5, steps=20)
    found = sweep(SMALL, mappings, seeds, width=8, learning_rate=0.5, steps=20)
    torch.testing.assert_close(losses, found.losses)
    for index, mapping in enumerate(mappings):
        for place, seed in enumerate(seeds):
            expected = torch.tensor(alone(mapping, seed, 20))
            torch.testing.assert_close(losses[:, index, place], expected, rtol=1e-4, atol=1e-5)


def test_influence_is_the_product_of_the_examples_gradients() -> None:
    found = sweep(SMALL, [HOLISTIC], [0], width=8, learning_rate=0.5, steps=2)
    network, loss = message_network(SMALL, 8, 0), message_loss(SMALL)
    x, target = (torch.from_numpy(one_hot(SMALL, one)) for one in (range(4), HOLISTIC))
    flat = []
    for row in range(4):
        value = loss(network(x[row : row + 1]), target[row : row + 1])
        gradients = torch.autograd.grad(value, list(network.parameters()))
        flat.append(torch.cat([one.flatten() for one in gradients]))
    products = torch.stack(flat) @ torch.stack(flat).T
    between = products[~torch.eye(4, dtype=torch.bool)].mean()
    torch.testing.assert_close(found.start_influence[0, 0], between)


def test_own_and_others_parts_add_up_to_the_fall_of_the_loss() -> None:
    steps = 200
    found = sweep(SMALL, [IDENTITY, HOLISTIC], [0, 1], width=16, learning_rate=0.02, steps=steps)
    fallen = found.losses[0] - found.final
    torch.testing.assert_close(found.own + found.others, fallen, rtol=0.02, atol=0.0)
    assert all(b < a for a, b in pairwise(found.losses[:, 0, 0].tolist()))


def test_rows_and_claims_of_a_sweep() -> None:
    mappings = [*all_mappings(SMALL)[::17], IDENTITY, HOLISTIC]
    found = sweep(SMALL, mappings, (0, 1), width=8, learning_rate=0.5, steps=30)
    rows = learned(SMALL, mappings, found)
    assert rows[-2].kind == "compositional"
    assert rows[-1].area == pytest.approx(found.losses[:, -1].mean(0).tolist())
    expected = np.mean(np.array(rows[-2].area) - np.array(rows[-1].area))
    only = [row for row in rows if row.messages in (IDENTITY, HOLISTIC)]
    assert difference(only, "area").mean == pytest.approx(expected)
    assert difference(only, "area").n == 2
    assert -1 <= correlation(rows, "start_influence").mean <= 1
    assert len({one.id for one in mapping_verdicts(rows)}) == 6
    paths = {path.kind: path for path in loss_paths(rows, found)}
    assert set(paths) == {"compositional", "holistic", "degenerate"}
    assert np.shape(paths["holistic"].losses) == (2, 31)


def test_what_is_not_there_is_not_measured() -> None:
    found = sweep(SMALL, [CONSTANT], (0, 1), width=4, learning_rate=0.5, steps=2)
    rows = learned(SMALL, [CONSTANT], found)
    assert {one.outcome for one in mapping_verdicts(rows)} == {"not measured"}
