"""A force map's question: what is refused, what is named, on what the rules are tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import FrozenUpdate, PolicyFunction
from dynolab.forces.map import problem as problem_module
from dynolab.forces.map.gram import Kernel
from dynolab.forces.map.problem import Problem, Updating, pose
from dynolab.objectives import DPOConfig, SFTConfig, build_objective
from tests.forces.small_models import encoded, neox, pair, pairs, with_reference

DPO, SFT = build_objective(DPOConfig()), build_objective(SFTConfig())


@pytest.fixture(scope="module")
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


def posed(policy: PolicyFunction, **changed: Any) -> Problem:
    arguments: dict[str, Any] = {
        "observed": [encoded(1, 4, 6)],
        "updating": with_reference(policy.model, pairs(2)),
        "objective": DPO,
        "update": 0.25,
        "at": None,
        "observed_temperature": 1.0,
        **changed,
    }
    return pose(policy, **arguments)


def response(sequence: Encoded) -> tuple[int, ...]:
    return sequence.ids[sequence.prompt_length :]


def test_updating_responses_are_named_by_example_side_and_tokens(policy: PolicyFunction) -> None:
    found = posed(policy)
    assert found.labels == [
        Updating(pair.id, side, response(getattr(pair, side)))
        for pair in pairs(2)
        for side in ("chosen", "rejected")
    ]
    assert [one.sequence for one in found.updating] == [
        getattr(pair, side) for pair in pairs(2) for side in ("chosen", "rejected")
    ]
    assert found.columns == sum(len(label.tokens) for label in found.labels)
    assert (found.rate, found.kernel.scale) == (0.25, None)
    chosen = posed(policy, objective=SFT)
    assert [label.side for label in chosen.labels] == ["chosen", "chosen"]


def test_observed_tokens_are_read_at_the_temperature_that_is_asked_for(
    policy: PolicyFunction,
) -> None:
    found = posed(policy, observed=[encoded(1), encoded(2)], observed_temperature=0.5)
    assert [(one.sequence, one.temperature) for one in found.observed] == [
        (encoded(1), 0.5),
        (encoded(2), 0.5),
    ]
    assert [one.temperature for one in found.updating] == [1.0] * 4


def test_a_frozen_update_names_what_moves_and_holds_the_rate(policy: PolicyFunction) -> None:
    name = "gpt_neox.final_layer_norm.weight"
    scale = {name: torch.full_like(policy.weights[name], 0.5)}
    found = posed(policy, update=FrozenUpdate(scale, {}))
    assert found.kernel.wanted == {name} and found.rate == 1
    assert found.kernel.scale is not None and torch.equal(found.kernel.scale[name], scale[name])


def test_derivatives_are_taken_at_the_weights_that_are_given(policy: PolicyFunction) -> None:
    name = "gpt_neox.final_layer_norm.weight"
    at = {name: torch.full_like(policy.weights[name], 0.5)}
    assert torch.equal(posed(policy, at=at).kernel.at[name], at[name])


def test_rules_are_tried_on_the_first_responses_first_four_tokens(
    policy: PolicyFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Encoded] = []
    build = Kernel.build

    def watched(*arguments: Any) -> Kernel:
        tried.append(arguments[-1])
        return build(*arguments)

    monkeypatch.setattr(problem_module.Kernel, "build", watched)
    first = encoded(1, 4, 6)
    posed(policy, observed=[first, encoded(2)])
    assert tried == [Encoded(first.ids[:8], 4)]


@pytest.mark.parametrize("empty", ["observed", "updating"])
def test_a_side_without_responses_is_refused_by_name(policy: PolicyFunction, empty: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{empty} = \[\]: give at least one response"):
        posed(policy, **{empty: []})


def test_a_wrong_response_is_refused_by_its_side_and_number(policy: PolicyFunction) -> None:
    bad = Encoded((3, 4, 5000), 2)
    with pytest.raises(ConfigError, match=r"^observed\[1\] = .*vocabulary has 50"):
        posed(policy, observed=[encoded(1), bad])
    spoilt = pair(1).model_copy(update={"rejected": bad})
    with pytest.raises(ConfigError, match=r"^updating\[3\] = .*vocabulary has 50"):
        posed(policy, updating=[pair(0), spoilt])


def test_16_bits_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ConfigError, match="products of gradients of 8 significant bits have no sign; use float32"
    ):
        posed(PolicyFunction(neox(dtype=torch.float32), torch.bfloat16))
