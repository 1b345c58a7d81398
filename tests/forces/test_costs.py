"""Counted operations and bytes, against counts by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.rules import Rule
from dynolab.forces.map.costs import (
    cheapest_order,
    choose_route,
    contraction_flops,
    factor_bytes,
    formed_flops,
    kernel_flops,
    matrix_flops,
    route_flops,
    shapes_of,
    slice_width,
    split_to_fit,
)
from dynolab.forces.map.weighted import WeightedResponse

# Tokens and positions: M = 3, ΣT_o = 7, ΣM T_o = 10, and L = 4, ΣT_u = 5, ΣL T_u = 20.
OBSERVED, UPDATING = [(2, 3), (1, 4)], [(4, 5)]


def linear(d_in: int, d_out: int, bias: str | None = None, **facts: bool) -> Rule:
    return Rule(nn.Linear(d_in, d_out), "linear", "weight", bias, **facts)


def test_operations_of_one_matrix_by_hand() -> None:
    # Forming 2·7·11·(10 + 20), then 2·7·11·3·4.
    assert formed_flops(OBSERVED, UPDATING, 7, 11) == 154 * 30 + 154 * 12
    # C = a_o a_uᵀ takes 2·7·5·7, E 2·11·7·20, the product with the observed signals 2·11·10·4.
    assert kernel_flops(OBSERVED, UPDATING, 7, 11) == 490 + 22 * 140 + 22 * 40
    assert kernel_flops(UPDATING, OBSERVED, 7, 11) == 490 + 22 * 5 * 10 + 22 * 20 * 3


def test_the_order_is_the_cheapest_where_kernels_count_twice() -> None:
    # 6468 formed; 4450 as a kernel, 2910 with the sides exchanged.
    assert cheapest_order(OBSERVED, UPDATING, 7, 11) == "kernel_swapped"
    assert cheapest_order(UPDATING, OBSERVED, 7, 11) == "kernel"
    assert matrix_flops(OBSERVED, UPDATING, 7, 11) == 2910
    # 5544 formed is less than twice 2840.
    assert cheapest_order(OBSERVED, UPDATING, 6, 11) == "formed"
    assert matrix_flops(OBSERVED, UPDATING, 6, 11) == 5544


def test_operations_of_a_contraction_are_those_of_its_parameters() -> None:
    by_rule = {
        2910 + 2 * 12 * 11: linear(7, 11, "bias"),
        2 * 12 * 18: linear(7, 11, local=True),
        2 * 12 * 11: Rule(nn.Linear(7, 11), "linear", None, "bias"),
        2 * 2 * 12 * 7: Rule(nn.LayerNorm(7), "norm", "weight", "bias"),
        2 * 12 * 7: Rule(nn.LayerNorm(7), "norm", "weight", None),
        0: Rule(nn.Embedding(20, 7), "embedding", "weight", None),
    }
    for count, rule in by_rule.items():
        assert contraction_flops([rule], OBSERVED, UPDATING) == count
    assert contraction_flops(list(by_rule.values()), OBSERVED, UPDATING) == sum(by_rule)


def test_operations_of_the_routes_by_hand() -> None:
    # N = 77 + 10 parameters, 10 of them in a local matrix; the head makes no signal.
    rules = [linear(7, 11), linear(5, 2, local=True), linear(7, 20, local=True, head=True)]
    found = route_flops(rules, OBSERVED, UPDATING)
    assert found == {
        "columns": 87 * (4 * 20 + 6 * 4 * 7),
        "rows": 87 * (4 * 10 + 6 * 3 * 5),
        "both_sides": 2 * 77 * 30 + 2 * 10 * 12 + 2910 + 2 * 12 * 7 + 2 * 12 * 27,
    }
    assert choose_route(rules, OBSERVED, UPDATING) == "both_sides"
    assert choose_route(rules, [(1, 1)], [(30, 60)]) == "rows"
    assert choose_route(rules, [(30, 60)], [(1, 1)]) == "columns"


def test_bytes_of_factors_by_hand() -> None:
    # Three tokens on four positions; eight bytes a number.
    numbers = {
        3 * 18: linear(7, 11, local=True),
        4 * 7 + 3 * 4 * 11: linear(7, 11),
        4 * 7 + 3 * 4 * 11 + 3 * 11: linear(7, 11, "bias"),
        3 * 4 * 7: Rule(nn.Embedding(20, 7), "embedding", "weight", None),
        3 * 7: Rule(nn.LayerNorm(7), "norm", "weight", None),
        2 * 3 * 7: Rule(nn.LayerNorm(7), "norm", "weight", "bias"),
    }
    for count, rule in numbers.items():
        assert factor_bytes([rule], (3, 4), 8) == 8 * count
    assert factor_bytes(list(numbers.values()), (3, 4), 8) == 8 * sum(numbers)


def test_a_slice_is_as_wide_as_fits_and_never_empty() -> None:
    widths = [slice_width(100, 30, most) for most in (8, 2)]
    assert [*widths, slice_width(10, 30, 8), slice_width(90, 30, 8)] == [3, 2, 1, 3]


def test_a_sequence_is_halved_until_its_spans_fit() -> None:
    sequence = Encoded(tuple(range(10)), 3)
    assert shapes_of([sequence, Encoded((5, 6), 1)]) == [(7, 9), (1, 1)]
    tokens = torch.tensor(sequence.ids[3:])
    whole = WeightedResponse(sequence, tokens[:, None], 0.1 * tokens[:, None], temperature=0.7)
    spans = split_to_fit(lambda span: 10 * span.response_length, whole, 30)
    assert [span.sequence for span in spans] == [
        Encoded(sequence.ids[:end], start) for start, end in ((3, 6), (6, 8), (8, 10))
    ]
    for one in spans:  # each token keeps its own target and weight
        own = torch.tensor(one.sequence.ids[one.sequence.prompt_length :])[:, None]
        assert torch.equal(one.targets, own)
        assert torch.equal(one.weights, 0.1 * own)
        assert one.temperature == 0.7
    (one,) = split_to_fit(lambda span: 70, whole, 70)
    assert one.sequence == sequence
    with pytest.raises(ConfigError, match=r"memory_bytes = 72: .*10 bytes; give at least 80"):
        split_to_fit(lambda span: 10 * span.response_length, whole, 9)
