"""Force maps in some of the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.forces import FrozenUpdate, PolicyFunction, force_map
from dynolab.forces.function.layers import last_layers
from dynolab.forces.map.problem import pose
from dynolab.objectives import DPO, DPOConfig
from tests.forces.families import build, map_by_tokens
from tests.forces.lora import adapted
from tests.forces.small_models import encoded, pairs, with_reference

FAMILIES = ["gpt_neox", "llama_tied", "gpt2"]
OBSERVED = [encoded(n, 4, 5) for n in range(2)]
LOSS = DPO(DPOConfig())


def question(model: Any) -> tuple[PolicyFunction, dict[str, Any]]:
    policy = PolicyFunction(model, torch.float64)
    asked = {"observed": OBSERVED, "updating": with_reference(model, pairs(2)), "objective": LOSS}
    return policy, asked


def far(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_maps_in_parts_of_the_parameters_add_up_and_are_those_by_tokens(
    family: str, preconditioned: bool
) -> None:
    policy, asked = question(build(family, torch.float64))
    if preconditioned:
        generator = torch.Generator().manual_seed(0)
        scale = {n: torch.rand(w.shape, generator=generator) for n, w in policy.weights.items()}
        asked["update"] = FrozenUpdate(scale, {})
    last = last_layers(policy, 1)
    rest = set(policy.weights) - last
    assert last and rest
    maps = [force_map(policy, **asked, parameters=names).force for names in (last, rest)]
    plain = [map_by_tokens(policy, **asked, parameters=names).numpy() for names in (last, rest)]
    assert max(far(*both) for both in zip(maps, plain, strict=True)) < 1e-10
    assert far(maps[0] + maps[1], force_map(policy, **asked).force) < 1e-10


def test_signals_of_the_last_layer_stay_at_their_own_positions() -> None:
    """Without this the last layer would cost as much as several."""
    policy, asked = question(build("gpt_neox", torch.float64))
    posed = pose(
        policy,
        **asked,
        update=1.0,
        at=None,
        observed_temperature=1.0,
        parameters=last_layers(policy, 1),
    )
    assert posed.kernel.tail is not None and not posed.kernel.generic
    local = {rule.weight for rule in posed.kernel.rules if rule.local}
    assert any("mlp" in str(name) for name in local)


def test_last_layers_of_adapters_are_their_own() -> None:
    policy, asked = question(adapted("llama_tied").eval())
    names = last_layers(policy, 1)
    found = force_map(policy, **asked, parameters=names)
    truth = map_by_tokens(policy, **asked, parameters=names).numpy()
    assert far(found.force, truth) < 1e-10
    assert all("lora" in name and ".1." in name for name in found.facts.subspace)


def test_what_does_not_move_is_refused() -> None:
    policy, asked = question(build("gpt_neox", torch.float64))
    with pytest.raises(ConfigError, match=r"^last_layers = 3: the model has 2"):
        last_layers(policy, 3)
    with pytest.raises(ConfigError, match=r"^parameters = \['x'\]: none of them is trained"):
        force_map(policy, **asked, parameters={"x"})
