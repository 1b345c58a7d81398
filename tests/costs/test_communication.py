"""What ranks send is what their collectives move, and takes the time of the slowest link."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynolab.costs.communication import sent_bytes
from dynolab.costs.machines import machine_named
from dynolab.costs.memory import LIVE
from dynolab.costs.shape import ModelShape
from tests.training.small import settings

SHAPE = ModelShape(800_000, 800_000, 1000, 2, 10, 100, 1000)
LARGE = replace(SHAPE, parameters=2 * LIVE, trained=2 * LIVE)


def ring_reduce_scatter(parts: list[list[float]]) -> int:
    """Numbers that the first rank sends: of each of R parts of a tensor, one a turn."""
    ranks = len(parts)
    sent = 0
    for turn in range(ranks - 1):
        moved = [parts[rank][(rank - turn) % ranks] for rank in range(ranks)]
        for rank, value in enumerate(moved):
            parts[(rank + 1) % ranks][(rank - turn) % ranks] += value
        sent += 1
    assert all(parts[rank][(rank + 1) % ranks] == sum(range(ranks)) for rank in range(ranks))
    return sent


def sent(stage: int, ranks: int, shape: ModelShape, **changes: object) -> int:
    engine = {"kind": "deepspeed", "ranks": ranks, "zero_stage": stage}
    plain = {"steps": 1, "record_steps": [], "probe_every": 0, "micro_batch_size": 8}
    return sent_bytes(settings(**plain | {"engine": engine} | changes), shape)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_ring(ranks: int) -> None:
    parts = ring_reduce_scatter([[float(rank)] * ranks for rank in range(ranks)])
    part = 4 * SHAPE.trained // ranks
    assert sent(0, ranks, SHAPE) == 2 * parts * part  # a reduce-scatter and an all-gather


def test_zero_3_sends_one_and_a_half_times_what_ddp_sends() -> None:
    assert sent(3, 8, LARGE) == 1.5 * sent(0, 8, LARGE)


def test_a_smaller_model_is_gathered_twice_in_its_first_step_alone() -> None:
    one, two = (sent(3, 2, SHAPE, steps=steps, warmup_steps=0) for steps in (1, 2))
    assert one == 1.5 * sent(0, 2, SHAPE) and two - one == sent(0, 2, SHAPE)


def test_zero_2_sends_the_gradients_of_each_micro_batch() -> None:
    one, two = (sent(2, 2, SHAPE, micro_batch_size=size) for size in (4, 2))
    assert two - one == sent(0, 2, SHAPE)
    assert sent(1, 2, SHAPE, micro_batch_size=2) == one


def test_adapters_send_their_own_gradients() -> None:
    assert sent(0, 8, replace(SHAPE, trained=800)) == sent(0, 8, SHAPE) // 1000


def test_ranks_of_several_hosts_share_their_network() -> None:
    a100 = machine_named("a100x16")
    assert a100.sending_seconds(1e9, 8) == pytest.approx(1 / (0.8 * 300))
    assert a100.sending_seconds(1e9, 16) == pytest.approx(1 / (0.8 * 200))
    assert a100.host_bytes == machine_named("a100x8").host_bytes
