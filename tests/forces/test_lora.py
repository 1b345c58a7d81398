from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model, inject_adapter_in_model

from dynolab.data.encode import Encoder
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    breakdown,
    force_map,
    one_step,
    split_step,
    step_forces,
    token_forces,
)
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.likelihood import streamed
from dynolab.likelihood.streamed import keep_frozen_narrow
from dynolab.training.config import OptimizerConfig
from tests.forces.families import DPO_LOSS, ETA, OBSERVED, build, case_of
from tests.forces.lora import TARGETS, adapted
from tests.forces.small_models import recorded, relative
from tests.forces.test_step_forces import PROBES, Numbers


def map_of(model, dtype=torch.float64) -> torch.Tensor:
    return case_of(model, dtype).map()


def subspace_of_true_map(model):
    """The parameters that move, by a map that is that of one token after the other."""
    here = case_of(model)
    found = here.force_map()
    assert relative(torch.tensor(found.force), here.map_by_tokens()) < 1e-10
    return found.facts.subspace


@pytest.mark.parametrize("family", TARGETS)
def test_adapters_have_the_map_of_one_token_after_the_other(family):
    model = adapted(family)
    trained = sorted(name for name, p in model.named_parameters() if p.requires_grad)
    assert subspace_of_true_map(model) == trained
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2"])
def test_where_b_is_zero_only_b_moves(family):
    """∂L/∂A = 0 at B = 0: the map is that of the B matrices alone."""
    model = adapted(family, zero=True)
    whole = map_of(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_A" in name)
    assert not map_of(model).any()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in name)
    assert relative(whole, map_of(model)) < 1e-12


def test_the_adapters_kernel_is_not_the_kernel_of_all_weights():
    """The same function with merged weights has another map, and its facts say which it is."""
    model = adapted("llama_tied")
    of_adapters = map_of(model)
    merged = model.merge_and_unload().requires_grad_(True)
    assert subspace_of_true_map(merged) == "all"
    assert relative(map_of(merged), of_adapters) > 0.1


def test_injected_adapters_are_adapters():
    wrapped = adapted("llama_tied")
    model = build("llama_tied")
    inject_adapter_in_model(
        LoraConfig(r=3, lora_alpha=6, target_modules=TARGETS["llama_tied"]), model
    )
    inner = {n.removeprefix("base_model.model."): p for n, p in wrapped.named_parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(inner[name])
    assert relative(map_of(wrapped), map_of(model)) < 1e-12


def test_a_recorded_step_of_adapters_is_replayed_and_split():
    """Records hold the adapters alone; rows, parts and token map are of their step."""
    model = adapted("gpt_neox").eval()
    record = recorded(model, OptimizerConfig(name="adamw", learning_rate=1e-3))
    assert all("lora_" in name for name in record.before)
    policy = PolicyFunction(model, torch.float64)
    made = step_forces(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo")
    assert max(made.replay.replay_error, made.replay.closure_error) < 1e-9
    for row in made.rows:
        assert row.residual == pytest.approx(0, abs=1e-3 * abs(row.measured) + 1e-7)
    update = split_step(record, policy).update
    truth = token_forces(record, policy, update, 0, OBSERVED[0], at=record.before)
    found = force_map(
        policy, OBSERVED[:1], record.examples, DPO_LOSS, update=update, at=record.before
    )
    blocks = [torch.tensor(found.block(0, side)) for side in (0, 1)]
    assert relative(torch.cat(blocks, dim=1), truth) < 1e-10
    batch = policy.batch(OBSERVED)
    step = one_step(policy, record.before, record.after, batch)
    assert relative(step.predicted, step.measured) < 1e-3


@pytest.mark.parametrize("family", ["llama_tied", "gpt_neox"])
def test_frozen_weights_in_bf16_have_the_forces_of_the_same_weights_widened(family, monkeypatch):
    monkeypatch.setattr(streamed, "WIDENED", 64)  # several parts even of small matrices
    wide, narrow = (adapted(family, torch.float32).eval() for _ in range(2))
    keep_frozen_narrow(narrow)
    kept = [p for p in narrow.parameters() if p.dtype == torch.bfloat16]
    assert len(kept) > 3
    with torch.no_grad():
        for parameter, own in zip(wide.parameters(), narrow.parameters(), strict=True):
            parameter.copy_(own)
    for dtype, close in ((torch.float32, 1e-4), (torch.float64, 1e-6)):
        assert relative(map_of(narrow, dtype), map_of(wide, dtype)) < close
    record = recorded(wide, OptimizerConfig(name="adamw", learning_rate=1e-3))
    encoder = Encoder(Numbers(), 32, "drop")
    rows = [
        step_forces(record, PolicyFunction(model), PROBES, encoder, stage="dpo").rows
        for model in (wide, narrow)
    ]
    for one, other in zip(*rows, strict=True):
        assert other.predicted == pytest.approx(one.predicted, abs=1e-6)
    assert derivatives_of(PolicyFunction(narrow)).agrees("second")


@pytest.mark.parametrize("family", ["llama_tied", "gpt2"])
def test_blocks_of_adapters_add_up(family):
    here = case_of(adapted(family))
    parts = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS, update=ETA)
    assert relative(parts.force, here.map()) < 1e-10
    assert set(parts.parts) <= {"attention.q", "attention.v", "attention.qkv", "attention.o", "mlp"}


@pytest.mark.parametrize(
    "changes",
    [
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj"], "bias": "all"},
        {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    ],
    ids=str,
)
def test_heads_and_tables_beside_adapters(changes):
    """A head or embedding trained whole, or adapted itself, of a model that tied both."""
    subspace_of_true_map(adapted("llama_tied", **changes))


def test_adapters_that_are_off_merged_or_of_another_kind_are_refused():
    model = adapted("gpt2", torch.float32)
    model.merge_adapter()
    with pytest.raises(ConfigError, match=r"are merged.*unmerge_adapter"):
        PolicyFunction(model)
    model.unmerge_adapter()
    with model.disable_adapter(), pytest.raises(ConfigError, match="switched off"):
        PolicyFunction(model)
    with pytest.raises(ConfigError, match=r"only plain LoRA has forces.*merge_and_unload"):
        PolicyFunction(adapted("gpt2", torch.float32, use_dora=True))
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(ConfigError, match="virtual prompt tokens"):
        PolicyFunction(get_peft_model(build("gpt2", torch.float32), prompts))


def test_adapters_that_do_not_train_have_no_subspace():
    model = adapted("gpt2", torch.float32).requires_grad_(False)
    with pytest.raises(ConfigError, match="is_trainable=True"):
        map_of(model, torch.float32)
