"""Forces on the GPU beside those of the CPU in float64, by every route."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from dynolab.distributed import device
from dynolab.forces import PolicyFunction, force_map
from tests.benchmarks.pythia import pythia
from tests.forces.families import DPO_LOSS, ROUTES, Case, build
from tests.forces.small_models import pair, pairs, relative, with_reference
from tests.gpu.check.machine import gpu_count
from tests.gpu.check.outcome import Check, Figure
from tests.gpu.check.shapes import LARGE, SMALL

FAMILIES = ("gpt_neox", "llama_tied")
BUDGET = 2**31
BOUNDS = {"float64": 1e-9, "float32": 1e-4}


def _map(family: str, dtype: torch.dtype, route: str, where: torch.device) -> Tensor:
    examples = with_reference(build(family), pairs(2))
    policy = PolicyFunction(build(family).to(where, dtype), dtype)
    return Case(policy, examples).map(route=route).double()


@cache
def _truth(family: str) -> Tensor:
    return _map(family, torch.float64, "columns", torch.device("cpu"))


def maps(_: Path) -> Mapping[str, float]:
    values = {}
    for route in ROUTES:
        for name in BOUNDS:
            values[f"{route}_{name}_error"] = max(
                relative(_map(family, getattr(torch, name), route, device()), _truth(family))
                for family in FAMILIES
            )
        one, other = (_map(FAMILIES[0], torch.float32, route, device()) for _ in range(2))
        values[f"{route}_again"] = relative(one, other)
    return values


def memory(_: Path) -> Mapping[str, float]:
    """Of maps of pairs of HH's lengths on a model of the 160m shape, beside the model."""
    shape = LARGE if gpu_count() else SMALL
    model = pythia(**shape.sizes).to(device())
    examples = with_reference(model, [pair(0, shape.prompt, shape.chosen, shape.rejected)])
    policy = PolicyFunction(model)
    values = {}
    for route in ROUTES:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        observed = [examples[0].chosen]
        force_map(policy, observed, examples, DPO_LOSS, route=route, memory_bytes=BUDGET)
        peak = torch.cuda.max_memory_allocated() - before
        values[f"{route}_peak"] = peak / BUDGET
    return values


CHECKS = [
    Check(
        name="forces",
        asserts="Force maps of every route are those of the CPU in float64.",
        figures=tuple(
            figure
            for route in ROUTES
            for figure in (
                *(
                    Figure(
                        name=f"{route}_{name}_error",
                        means=f"error of a map by the route {route} in {name}, of its norm",
                        at_most=bound,
                    )
                    for name, bound in BOUNDS.items()
                ),
                Figure(
                    name=f"{route}_again",
                    means=f"difference of two maps by the route {route} in float32, of their norm",
                    at_most=1e-5,
                ),
            )
        ),
        measure=maps,
        stand_in="pretended GPU",
    ),
    Check(
        name="force-memory",
        asserts="A force map takes no more memory than it was given.",
        figures=tuple(
            Figure(
                name=f"{route}_peak",
                means=f"most memory of a map by the route {route}, of what it was given",
                at_most=1.0,
                needs_gpu=True,
            )
            for route in ROUTES
        ),
        measure=memory,
        stand_in="pretended GPU",
    ),
]
