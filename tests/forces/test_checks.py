"""What is refused before work starts, and that nothing within the bounds is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function.checks import (
    check_arithmetic,
    check_batch,
    check_finite,
    check_model,
    check_record,
    check_response,
)
from tests.forces.linear_softmax import LinearSoftmax
from tests.forces.small_models import VOCABULARY, neox, recorded

CONTEXT = 32
DIVERGED = "'nan or inf': training diverged; give a checkpoint from before divergence"


@pytest.fixture
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


@pytest.mark.parametrize(
    "sequence",
    [
        Encoded((0, VOCABULARY - 1), 1),
        Encoded((5, 5), 1),
        Encoded(tuple(range(CONTEXT)), 1),
        Encoded(tuple(range(CONTEXT)), CONTEXT - 1),
    ],
    ids=["first and last token", "one token twice", "long response", "long prompt"],
)
def test_responses_up_to_the_bounds_are_scored(policy: PolicyFunction, sequence: Encoded) -> None:
    check_response("observed", sequence, policy.causal)
    check_batch(collate([sequence, Encoded((1, 2, 3, 4), 2)], 0), policy.causal)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Encoded((3, VOCABULARY), 1), "observed = 50: the model's vocabulary has 50 tokens; "),
        (Encoded((3, -1), 1), "observed = 3: the model's vocabulary has 50 tokens; "),
        (Encoded((3,) * (CONTEXT + 1), 1), "observed = '33 tokens': the context holds 32; "),
        (Encoded((3, 4), 2), "observed = (3, 4): has no response tokens; "),
        (Encoded((3, 4), 0), "observed = (3, 4): has no prompt token "),
    ],
)
def test_responses_past_the_bounds_are_refused(
    policy: PolicyFunction, sequence: Encoded, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_response("observed", sequence, policy.causal)
    assert str(refused.value).startswith(message)


def test_a_model_that_names_no_context_takes_any_length() -> None:
    policy = PolicyFunction(LinearSoftmax())
    check_response("observed", Encoded((7,) * 500, 1), policy.causal)


def test_tensors_are_finite_however_large_their_sum() -> None:
    check_finite("weights", {"large": torch.full((4,), 3e38), "none": torch.zeros(0)})
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ConfigError) as refused:
            check_finite("weights", {"fine": torch.ones(2), "bad": torch.tensor([1.0, bad])})
        assert str(refused.value) == f"weights[bad] = {DIVERGED}"


def test_a_plain_module_is_fit_down_to_parameters_of_one_number() -> None:
    check_model(nn.Sequential(nn.Linear(1, 1), nn.Tanh()))


def test_a_diverged_module_is_refused_by_name() -> None:
    model = nn.Linear(1, 1)
    model.bias.data.fill_(float("nan"))
    with pytest.raises(ConfigError) as refused:
        check_model(model)
    assert str(refused.value) == f"weights[bias] = {DIVERGED}"


class Variant:
    """A kind of adapter that is no plain LoRA."""


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "merged_adapters",
            ["default"],
            "inner = \"adapters ['default'] are merged\": call unmerge_adapter(), or "
            "merge_and_unload() to move the merged weights",
        ),
        (
            "_disable_adapters",
            True,
            "inner = 'adapters are switched off': switch them on, or unload them",
        ),
        (
            "lora_variant",
            {"default": Variant(), "second": Variant()},
            "inner = ['Variant']: only plain LoRA has forces: DoRA's gradient holds its norm "
            "constant, so it is no derivative; call merge_and_unload() to move the merged weights",
        ),
    ],
)
def test_adapters_without_forces_are_refused(attribute: str, value: object, message: str) -> None:
    model = nn.Sequential()
    model.add_module("inner", nn.Linear(2, 2))
    for fit in ([], {}, None, False):
        setattr(model.inner, attribute, fit)
        check_model(model)
    setattr(model.inner, attribute, value)
    with pytest.raises(ConfigError) as refused:
        check_model(model)
    assert str(refused.value) == message


def test_a_record_s_spoilt_tensors_are_refused_by_name(policy: PolicyFunction) -> None:
    record = recorded(neox())
    check_record(record, policy.causal)
    name = next(iter(record.before))
    spoilt = {name: torch.full_like(record.before[name], float("nan"))}
    (kind, state), *_ = record.state.items()
    cases = {
        f"record.before[{name}]": replace(record, before=record.before | spoilt),
        f"record.after[{name}]": replace(record, after=record.after | spoilt),
        f"record.state[{kind}][{name}]": replace(
            record, state=record.state | {kind: {**state, name: spoilt[name]}}
        ),
    }
    for field, bad in cases.items():
        with pytest.raises(ConfigError) as refused:
            check_record(bad, policy.causal)
        assert str(refused.value) == f"{field} = {DIVERGED}"


def test_sixteen_bits_are_refused_with_the_reason() -> None:
    policy = PolicyFunction(neox(), torch.bfloat16)
    with pytest.raises(ConfigError) as refused:
        check_arithmetic(policy.dtype, "too few digits")
    assert str(refused.value) == (
        "policy.dtype = 'torch.bfloat16': too few digits; use float32 or float64"
    )
