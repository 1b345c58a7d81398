"""What cannot be analysed is refused before work starts: by name, value and remedy."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    force_map,
    measured_change,
    one_step,
    split_step,
    token_forces,
)
from dynolab.forces.function.checks import (
    check_batch,
    check_finite,
    check_response,
)
from dynolab.objectives import SFT, SFTConfig
from tests.forces.families import build
from tests.forces.small_models import VOCABULARY, encoded, pair, recorded, relative

SFT_STEP = SFT(SFTConfig())
BAD = [
    (Encoded((3, 4, 5), 3), "no response tokens; give a response"),
    (Encoded((3, 4, 5), 0), "no prompt token.*give a prompt"),
    (encoded(1, 20, 20), "40 tokens.*context holds 32"),
    (Encoded((3, 4, 5000), 2), "5000.*vocabulary has 50 tokens.*model's tokenizer"),
]


@pytest.fixture(scope="module")
def llama_policy():
    return PolicyFunction(build("llama_untied", torch.float32))


@pytest.fixture(scope="module")
def record():
    """A step of SFT on examples that have a chosen answer alone."""
    whole = recorded(build("llama_untied", torch.float32), objective=SFTConfig())
    alone = [example.model_copy(update={"rejected": None}) for example in whole.examples]
    return replace(whole, examples=tuple(alone))


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_observed_responses_are_checked_wherever_they_enter(llama_policy, record, bad, message):
    batch = collate([encoded(2), bad], 0)
    before, after = record.before, record.after
    step = {"model.norm.weight": torch.ones(32)}
    for ask in (
        lambda: one_step(llama_policy, before, after, batch),
        lambda: measured_change(llama_policy, before, after, batch),
        lambda: llama_policy.change_along(before, [step], batch),
    ):
        with pytest.raises(ConfigError, match=rf"batch sequence 1 = .*{message}"):
            ask()
    with pytest.raises(ConfigError, match=message):
        token_forces(record, llama_policy, split_step(record, llama_policy).update, 0, bad)
    with pytest.raises(ConfigError, match=rf"observed\[1\] = .*{message}"):
        force_map(llama_policy, [encoded(2), bad], [pair(1)], SFT_STEP)


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_updating_responses_are_checked_wherever_they_enter(llama_policy, record, bad, message):
    example = pair(1).model_copy(update={"chosen": bad})
    with pytest.raises(ConfigError, match=rf"updating\[0\] = .*{message}"):
        force_map(llama_policy, [encoded(2)], [example], SFT_STEP)
    with pytest.raises(ConfigError, match=rf"record example pair-1\.chosen = .*{message}"):
        split_step(replace(record, examples=(example,)), llama_policy)


def poisoned(weights, value=float("nan")):
    name = next(iter(weights))
    spoilt = weights[name].clone()
    spoilt.view(-1)[-1] = value
    return {**weights, name: spoilt}


def test_a_diverged_model_is_refused_by_the_name_of_the_parameter():
    model = build("gpt2", torch.float32)
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = float("inf")
    with pytest.raises(ConfigError, match=r"ln_f\.weight\] = 'nan or inf'.*before divergence"):
        PolicyFunction(model)


def test_diverged_states_are_refused_wherever_they_enter(llama_policy, record):
    batch, good, bad = collate([encoded(2)], 0), record.before, poisoned(record.before)
    for ask in (
        lambda: one_step(llama_policy, bad, record.after, batch),
        lambda: one_step(llama_policy, good, poisoned(record.after), batch),
        lambda: llama_policy.change_along(bad, [good], batch),
        lambda: force_map(llama_policy, [encoded(2)], [pair(1)], SFT_STEP, at=bad),
        lambda: split_step(replace(record, before=bad), llama_policy),
        lambda: split_step(
            replace(record, after=poisoned(record.after, float("inf"))), llama_policy
        ),
        lambda: split_step(
            replace(record, state={n: poisoned(s) for n, s in record.state.items()}), llama_policy
        ),
    ):
        with pytest.raises(ConfigError, match=r"= 'nan or inf': training diverged"):
            ask()


def test_placeholders_of_zero_3_are_refused_with_where_the_weights_are():
    model = build("gpt2", torch.float32)
    model.transformer.h[0].mlp.c_fc.weight.data = torch.empty(0)
    with pytest.raises(ConfigError, match=r"c_fc\.weight = .*ZeRO-3.*`model/`.*master_weights"):
        PolicyFunction(model)


@pytest.mark.parametrize("offloaded", ["transformer.h.1", ""])
def test_offloaded_weights_are_refused(offloaded):
    model = build("gpt2", torch.float32)
    model.get_submodule(offloaded).to("meta")
    with pytest.raises(ConfigError, match=r"model = \[.*'meta'\]: put all weights on one device"):
        PolicyFunction(model)


def test_what_is_no_causal_language_model_is_refused_with_where_to_get_one():
    headless = build("gpt2", torch.float32).transformer
    for model, name in ((nn.Linear(2, 2), "Linear"), (headless, "GPT2Model")):
        with pytest.raises(ConfigError, match=rf"model = '{name}'.*AutoModelForCausalLM"):
            PolicyFunction(model)


def test_quantised_weights_are_refused():
    model = build("gpt2", torch.float32)
    layer = model.transformer.h[0].mlp.c_fc
    layer.weight = nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    with pytest.raises(ConfigError, match=r"int8.*dequantise"):
        PolicyFunction(model)


def test_16_bits_are_refused_where_their_rounding_hides_the_result(record):
    policy = PolicyFunction(build("llama_untied", torch.float32), torch.bfloat16)
    batch = collate([encoded(2)], 0)
    with pytest.raises(ConfigError, match=r"bfloat16.*12 to 80 %.*use float32 or float64"):
        one_step(policy, record.before, record.after, batch)
    with pytest.raises(
        ConfigError, match=r"gradients of 8 significant bits have no sign; use float32"
    ):
        force_map(policy, [encoded(2)], [pair(1)], SFT_STEP)
    assert policy.change_along(record.before, [record.after], batch).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_training_model_is_analysed_as_it_evaluates_and_left_as_it_was(dtype, caplog):
    """Dropout, gradient checkpointing, cache and eager attention change no number."""
    caplog.set_level(logging.WARNING)
    still, busy = build("gpt2", dtype), build("gpt2", dtype)
    busy.gradient_checkpointing_enable()
    busy.config.use_cache = True
    busy.set_attn_implementation("eager")
    busy.train()
    assert busy.transformer.drop.p > 0
    busy.transformer.h[0].eval()
    modes = [module.training for module in busy.modules()]
    one, other = (
        force_map(PolicyFunction(model, dtype), [encoded(2)], [pair(1)], SFT_STEP)
        for model in (still, busy)
    )
    bound = 1e-5 if dtype == torch.float32 else 1e-12
    assert relative(torch.tensor(other.force), torch.tensor(one.force)) < bound
    assert [module.training for module in busy.modules()] == modes
    assert busy.config._attn_implementation == "eager"
    # Eager attention has a derivative, and keeps float64 as everything does that is analysed in it.
    assert not [record for record in caplog.records if "takes its place" in record.getMessage()]


def test_a_model_whose_own_forward_fails_is_refused():
    model = build("gpt2", torch.float64)

    def fail(*inputs: object) -> None:
        raise NotImplementedError("no such kernel")

    model.transformer.h[0].register_forward_pre_hook(fail)
    with pytest.raises(
        ConfigError, match=r"its own forward fails \(NotImplementedError: no such k"
    ):
        PolicyFunction(model, torch.float64)


CONTEXT = 32


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
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        check_response("observed", sequence, policy.causal)


def test_tensors_are_finite_however_large_their_sum() -> None:
    check_finite("weights", {"large": torch.full((4,), 3e38), "none": torch.zeros(0)})
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ConfigError, match=r"^weights\[bad\] = 'nan or inf': training diverged"):
            check_finite("weights", {"fine": torch.ones(2), "bad": torch.tensor([1.0, bad])})


def test_products_that_torch_may_round_are_refused() -> None:
    model = build("llama_untied", torch.float32)
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(ConfigError, match=r"cuda.matmul.fp32_precision = 'tf32': forces need"):
            PolicyFunction(model)
    finally:
        torch.set_float32_matmul_precision("highest")
    PolicyFunction(model)
