"""Mappings, their kinds and measures, and their learning against one network at a time."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from experiments.chapters.classifiers.many import SGDConfig
from experiments.chapters.simplicity.mappings import (
    Messages,
    SpaceName,
    all_mappings,
    coding_length,
    composed,
    compositional_count,
    kind_of,
    one_hot,
    sampled_bijections,
    topographic_similarity,
)
from experiments.chapters.simplicity.page import correlation, difference, mapping_verdicts
from experiments.chapters.simplicity.sweep import (
    kind_paths,
    learned,
    letter_products,
    message_loss,
    message_network,
    sweep,
)
from experiments.tests.chapters.plain import train

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
    first, again, other = (sampled_bijections(space, 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    kinds = Counter(kind_of(space, mapping) for mapping in set(first))
    assert kinds == {"compositional": 20, "holistic": 20} and len(first) == 40


def test_together_every_mapping_and_seed_learns_as_it_would_alone() -> None:
    mappings, seeds = (IDENTITY, CONSTANT, HOLISTIC), (3, 5)
    losses = sweep(SMALL, mappings, seeds, width=8, learning_rate=0.5, steps=20).losses
    inputs, whole = torch.from_numpy(one_hot(SMALL, range(4))), torch.arange(4).expand(20, -1)
    sgd = SGDConfig(learning_rate=0.5)
    for index, mapping in enumerate(mappings):
        for place, seed in enumerate(seeds):
            network, target = (
                message_network(SMALL, 8, seed),
                torch.from_numpy(one_hot(SMALL, mapping)),
            )
            expected = train(network, inputs, target, whole, sgd, message_loss(SMALL))
            torch.testing.assert_close(losses[:, index, place], expected, rtol=1e-4, atol=1e-5)


def products_of(space: SpaceName, network: nn.Module, mapping: Messages) -> Tensor:
    """The letter products of one network on one mapping, by place and pair of objects."""
    weights = {name: w.detach()[None] for name, w in network.named_parameters()}
    x, target = (
        torch.from_numpy(one_hot(space, messages)).to(next(network.parameters()))
        for messages in (range(space.objects), mapping)
    )
    return letter_products(space, weights, x, target[None])[0]


@pytest.mark.parametrize(("values", "mapping"), [(2, HOLISTIC), (3, (0, 4, 8, 2, 3, 7, 1, 5, 6))])
def test_letter_products_are_those_of_autograd_s_gradients(
    values: int, mapping: tuple[int, ...]
) -> None:
    space = SpaceName(attributes=2, values=values)
    network = message_network(space, 8, 0).double()
    x, target = (
        torch.from_numpy(one_hot(space, messages)).double()
        for messages in (range(space.objects), mapping)
    )
    products = products_of(space, network, mapping)
    for place in range(2):
        letter = slice(place * values, (place + 1) * values)
        gradients = []
        for row in range(space.objects):
            loss = -(target[row, letter] * network(x[row])[letter].log_softmax(-1)).sum()
            parts = torch.autograd.grad(loss, list(network.parameters()))
            gradients.append(torch.cat([part.flatten() for part in parts]))
        stacked = torch.stack(gradients)
        torch.testing.assert_close(products[place], stacked @ stacked.T)


def test_cooperation_is_the_mean_over_pairs_that_share_an_attribute() -> None:
    measured = sweep(SMALL, [IDENTITY, HOLISTIC], [4], width=8, learning_rate=0.5, steps=2)
    # Objects 00, 01, 10, 11: only 00 with 11 and 01 with 10 share nothing.
    sharing = [(o, u) for o in range(4) for u in range(4) if o != u and o + u != 3]
    for index, mapping in enumerate((IDENTITY, HOLISTIC)):
        products = products_of(SMALL, message_network(SMALL, 8, 4), mapping)
        expected = torch.stack([products[:, o, u] for o, u in sharing]).mean()
        torch.testing.assert_close(measured.cooperation[0, index, 0], expected)


def test_compositional_mappings_cooperate_though_all_pairs_together_do_not() -> None:
    space, seeds = SpaceName(attributes=2, values=3), tuple(range(100, 105))
    mappings = sampled_bijections(space, 10, seed=1)
    measured = sweep(space, mappings, seeds, width=16, learning_rate=0.5, steps=2)
    rows = pd.DataFrame(learned(space, mappings, measured))
    outcomes = {verdict.id: verdict.outcome for verdict in mapping_verdicts(rows)}
    claims = [outcomes[f"2×3/{claim}"] for claim in ("cooperation", "start", "contradiction")]
    assert claims == ["holds"] * 3
    # The same products over all pairs: the part of the kernel that all pairs share drags them down.
    products = products_of(space, message_network(space, 16, 100), mappings[0])
    assert kind_of(space, mappings[0]) == "compositional"
    assert products[:, ~torch.eye(9, dtype=torch.bool)].mean() < 0


def test_rows_and_claims_of_a_sweep() -> None:
    mappings = [*all_mappings(SMALL)[::17], IDENTITY, HOLISTIC]
    measured = sweep(SMALL, mappings, (0, 1), width=8, learning_rate=0.5, steps=30)
    records = learned(SMALL, mappings, measured)
    rows = pd.DataFrame(records)
    assert records[-2]["kind"] == "compositional"
    assert records[-1]["area"] == pytest.approx(measured.losses[:, -1].mean(0).tolist())
    expected = np.mean(np.array(records[-2]["area"]) - np.array(records[-1]["area"]))
    gain = difference(rows[rows.messages.isin([IDENTITY, HOLISTIC])], "area")
    assert (gain.mean, gain.n) == (pytest.approx(expected), 2)
    assert -1 <= correlation(rows, "start_cooperation").mean <= 1
    assert len({one.id for one in mapping_verdicts(rows)}) == 7
    shapes = {
        path["kind"]: (np.shape(path["losses"]), np.shape(path["cooperation"]))
        for path in kind_paths(records, measured)
    }
    assert shapes == dict.fromkeys(("compositional", "holistic", "degenerate"), ((2, 31), (2, 30)))


def test_what_is_not_there_is_not_measured() -> None:
    measured = sweep(SMALL, [CONSTANT], (0, 1), width=4, learning_rate=0.5, steps=2)
    verdicts = mapping_verdicts(pd.DataFrame(learned(SMALL, [CONSTANT], measured)))
    assert {verdict.outcome for verdict in verdicts} == {"not measured"}
