"""A force map in tiles: what fits into the memory, what is computed, at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.kernel.operator import TangentKernel
from dynolab.forces.kernel.size import _groups
from dynolab.forces.map import costs
from dynolab.forces.map.costs import (
    LEAST_BYTES,
    cheapest_order,
    factor_bytes,
    formed_flops,
    kernel_flops,
    memory_for,
    shapes_of,
    slice_width,
    split_to_fit,
)
from dynolab.forces.map.gram import Side, factor_tiles, plan_tiles
from dynolab.forces.map.weighted import WeightedResponse

TEN_BYTES_A_TOKEN = SimpleNamespace(bytes_of=lambda sequence: 10 * sequence.response_length)


def response(tokens: int) -> WeightedResponse:
    sequence = Encoded(tuple(range(tokens + 2)), 2)
    column = torch.arange(2, tokens + 2)[:, None]
    return WeightedResponse(sequence, column, torch.ones(tokens, 1), temperature=1.0)


def lengths(side: Side) -> list[list[int]]:
    return [[one.sequence.response_length for one in group] for group in side.groups]


@pytest.mark.parametrize(
    ("observed", "updating", "rows", "columns"),
    [
        # Of 800 bytes 600 hold factors: 300 a side.
        ([10] * 5, [10] * 5, [[10] * 3, [10] * 2], [[10] * 3, [10] * 2]),
        # A side that needs 200 leaves 400 to the other.
        ([10] * 2, [10] * 5, [[10] * 2], [[10] * 4, [10]]),
        ([10] * 5, [10] * 2, [[10] * 4, [10]], [[10] * 2]),
        # A response of more than 100 bytes is cut.
        ([11], [10], [[5, 6]], [[10]]),
        ([4, 9, 9, 9, 2], [10] * 9, [[4, 9, 9], [9, 2]], [[10] * 3] * 3),
    ],
)
def test_responses_go_together_as_the_memory_holds_them(
    observed: list[int], updating: list[int], rows: list[list[int]], columns: list[list[int]]
) -> None:
    left, right = plan_tiles(
        TEN_BYTES_A_TOKEN,  # type: ignore[arg-type]
        [response(tokens) for tokens in observed],
        [response(tokens) for tokens in updating],
        800,
    )
    assert (lengths(left), lengths(right)) == (rows, columns)


def test_a_side_s_slices_follow_one_another() -> None:
    side = Side([[response(3), response(2)], [response(4)]])
    assert side.slices == [slice(0, 5), slice(5, 9)]


class Counting:
    """Gradients whose factors are the numbers of their tokens, and which count the asking."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def factors(self, responses: Sequence[WeightedResponse]) -> list[Any]:
        lengths = [response.sequence.response_length for response in responses]
        self.asked += lengths
        return lengths


def test_factors_of_an_updating_group_are_made_once_for_all_observed_groups() -> None:
    gradients = Counting()
    observed, updating = Side([[response(1)], [response(2)]]), Side([[response(3), response(4)]])
    tiles = list(factor_tiles(gradients, observed, updating, is_missing=lambda tile: True))  # type: ignore[arg-type]
    columns = slice(0, 7)
    assert tiles == [
        ((slice(0, 1), columns), [1], [3, 4]),
        ((slice(1, 3), columns), [2], [3, 4]),
    ]
    assert gradients.asked == [3, 4, 1, 2]


@pytest.mark.parametrize("groups", [1, 3])
def test_one_group_s_factors_of_each_side_are_held_at_a_time(groups: int) -> None:
    held: WeakSet[nn.Module] = WeakSet()

    def factors(responses: object) -> list[Any]:
        assert len(held) <= 1  # the other side's
        made = nn.Identity()
        held.add(made)
        return [made]

    observed, updating = (Side([[response(1)]] * number) for number in (groups, 2))
    gradients: Any = SimpleNamespace(factors=factors)
    for _, left, right in factor_tiles(gradients, observed, updating, is_missing=lambda tile: True):
        assert len(held) == 2
        del left, right


@pytest.mark.parametrize(("short", "directions"), [(1, 5), (0, 6)])
def test_directions_share_a_pass_as_the_memory_holds_them(
    policy: PolicyFunction, short: int, directions: int
) -> None:
    """Eight bytes a number: two tangents of all weights, four images of 2 × 4 logits."""
    each = 8 * (2 * sum(w.numel() for w in policy.weights.values()) + 4 * 2 * 4)
    assert TangentKernel.build(policy, memory_bytes=6 * each - short).together(2, 4) == directions
    assert TangentKernel.build(policy, memory_bytes=10).together(2, 4) == 1


@pytest.mark.parametrize(
    ("room", "groups"), [(20, [2, 2, 1]), (29, [2, 2, 1]), (30, [3, 2]), (10, [1] * 5), (50, [5])]
)
def test_items_go_together_as_the_room_holds_them(room: int, groups: list[int]) -> None:
    items = [Encoded((number, 1), 1) for number in range(5)]
    made = list(_groups("observed", items, 10, room))
    assert [len(group) for group in made] == groups
    assert [item for group in made for item in group] == items


# Tokens and positions: M = 3, ΣT_o = 7, ΣM T_o = 10, and L = 4, ΣT_u = 5, ΣL T_u = 20.
FEW_OBSERVED, FEW_UPDATING = [(2, 3), (1, 4)], [(4, 5)]


def linear(d_in: int, d_out: int, bias: str | None = None, **facts: bool) -> Rule:
    return Rule(nn.Linear(d_in, d_out), "linear", "weight", bias, **facts)


def test_operations_of_one_matrix_by_hand() -> None:
    # Forming 2·7·11·(10 + 20), then 2·7·11·3·4.
    assert formed_flops(FEW_OBSERVED, FEW_UPDATING, 7, 11) == 154 * 30 + 154 * 12
    # C = a_o a_uᵀ takes 2·7·5·7, E 2·11·7·20, the product with the observed signals 2·11·10·4.
    assert kernel_flops(FEW_OBSERVED, FEW_UPDATING, 7, 11) == 490 + 22 * 140 + 22 * 40
    assert kernel_flops(FEW_UPDATING, FEW_OBSERVED, 7, 11) == 490 + 22 * 5 * 10 + 22 * 20 * 3


def test_the_order_is_the_cheapest_where_kernels_count_twice() -> None:
    # 6468 formed; 4450 as a kernel, 2910 with the sides exchanged.
    assert cheapest_order(FEW_OBSERVED, FEW_UPDATING, 7, 11) == "kernel_swapped"
    assert cheapest_order(FEW_UPDATING, FEW_OBSERVED, 7, 11) == "kernel"
    # 5544 formed is less than twice 2840.
    assert cheapest_order(FEW_OBSERVED, FEW_UPDATING, 6, 11) == "formed"


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


CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with 40 GiB free; returns where its container states its limits."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n")
    monkeypatch.setattr(costs, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(costs, "_GROUP", tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path


def test_a_map_takes_half_of_what_is_free(free: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_for(CPU) == 20 * GIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_for(CPU) == 5 * GIB
    assert memory_for(CPU, 2**20) == 2**20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    assert memory_for(torch.device("cuda", 0)) == 30 * GIB


@pytest.mark.parametrize(("limit", "expected"), [("max", 20), (str(10 * GIB), 4), ("0", 1)])
def test_a_container_s_limit_counts(free: Path, limit: str, expected: int) -> None:
    (free / "memory.max").write_text(limit)
    (free / "memory.current").write_text(str(5 * GIB))
    (free / "memory.stat").write_text(f"anon {GIB}\ninactive_file {3 * GIB}\n")
    assert memory_for(CPU) == expected * LEAST_BYTES


def test_answers_of_two_thousand_tokens_fit_beside_pythia_410m_on_80_gb() -> None:
    with torch.device("meta"):
        shape = GPTNeoXConfig(
            vocab_size=50_304,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        model = GPTNeoXForCausalLM(shape)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    rules = [
        Rule(m, "linear", f"{n}.weight", f"{n}.bias", head=m is model.lm_head)
        for n, m in linear.items()
    ]
    rules.append(Rule(model.gpt_neox.embed_in, "embedding", "embed_in.weight", None))
    room = 80 * 10**9 // 2 // 8  # of one span of tokens: half of what is free, an eighth of that
    assert factor_bytes(rules, (1, 2000), 4) < room
    assert factor_bytes(rules, (1, 2000), 4) > GIB // 8  # the least is not enough
