"""Group relative policy optimisation against TRL's own loss on the same log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOConfig as GRPOSettings, GRPOTrainer, RLOOTrainer
from trl.trainer.utils import add_fused_lm_head

from dynolab.data.batches import TokenBatch
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import GRPOConfig, build_objective, group_advantages
from tests.objectives.sampled import batch_of
from tests.objectives.small_llama import gradient, model

LIMIT = 9
CONFIGS = [
    GRPOConfig(aggregation=aggregation, ratio=ratio, kl=kl, max_tokens=LIMIT, clip_high=0.28)
    for aggregation in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
    for ratio in ("token", "sequence")
    for kl in (0.0, 0.3)
]
SURROGATES = [
    GRPOConfig(surrogate=surrogate, aggregation=aggregation, ratio=ratio, clip_high=1.1)
    for surrogate, aggregation in (("cispo", "dapo"), ("sapo", "grpo"), ("vespo", "dapo"))
    for ratio in ("token", "sequence")
]


def padded(values: Tensor, batch: TokenBatch) -> Tensor:
    """One row per completion, its response tokens from the left, zero elsewhere."""
    first = torch.cat([batch.sequence.new_zeros(1), batch.sequence_length.cumsum(0)])
    column = torch.arange(len(values)) - first[batch.sequence]
    table = values.new_zeros(len(batch.side), int(batch.sequence_length.max()))
    return table.index_put((batch.sequence, column), values)


def bare_trainer(config: GRPOConfig) -> GRPOTrainer:
    """A trainer that was given the few attributes its loss reads, and no data or model."""
    trainer = object.__new__(GRPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator(cpu=True)
    settings = ("sapo_temperature", "vespo_k", "vespo_lambda")
    defaults = {
        name: GRPOSettings.__dataclass_fields__[name].default
        for name in (f"{one}_{sign}" for one in settings for sign in ("pos", "neg"))
    }
    trainer.args = SimpleNamespace(
        use_bias_correction_kl=False, delta=None, steps_per_generation=1, **defaults
    )
    clipped = config.surrogate == "clipped"
    trainer.loss_type = config.aggregation if clipped else config.surrogate
    trainer.importance_sampling_level = config.ratio
    trainer.beta = config.kl
    trainer.epsilon_low, trainer.epsilon_high = config.clip_low, config.clip_high
    trainer.max_completion_length = LIMIT
    trainer.current_gradient_accumulation_steps = 1
    trainer.top_entropy_quantile, trainer.off_policy_mask_threshold = 1.0, None
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = False
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer._metrics = {"train": defaultdict(list)}
    return trainer


def inputs_of(batch: TokenBatch) -> dict[str, Tensor]:
    """The batch as TRL lays it out: prompts padded on the left, completions on the right."""
    mask = padded(torch.ones_like(batch.token), batch)
    lengths = batch.attention_mask.sum(1) - batch.sequence_length
    prompts = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)
    prompt_mask = torch.zeros_like(prompts)
    for row, length in enumerate(lengths.tolist()):
        prompts[row, prompts.shape[1] - length :] = batch.input_ids[row, :length]
        prompt_mask[row, prompts.shape[1] - length :] = 1
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": padded(batch.token, batch),
        "completion_mask": mask,
        "advantages": batch.advantage[batch.sequence_length.cumsum(0) - batch.sequence_length],
        "old_per_token_logps": padded(batch.old, batch),
        "ref_per_token_logps": padded(batch.reference, batch),
        "num_items_in_batch": mask.sum(),
    }


@pytest.mark.parametrize(
    "config",
    CONFIGS + SURROGATES,
    ids=lambda one: f"{one.surrogate}-{one.aggregation}-{one.ratio}-{one.kl}",
)
def test_loss_and_weights_are_trl_s(config):
    objective = build_objective(config)
    batch, logits = batch_of()
    logps = token_logps(logits, batch).detach().requires_grad_()
    trainer, table = bare_trainer(config), padded(logps, batch)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (table, table.detach(), None)
    oracle = trainer._compute_loss(trainer.model, inputs_of(batch))
    (gradient,) = torch.autograd.grad(oracle, logps)
    # TRL's temperatures of sapo are float32.
    rounding = {"rtol": 1e-10, "atol": 1e-14 if config.surrogate != "sapo" else 1e-7}
    torch.testing.assert_close(objective.loss(logps, batch), oracle, **rounding)
    rates = objective.token_weights(logps.detach(), batch)
    torch.testing.assert_close(rates, -gradient, **rounding)
    whole = config.kl or config.surrogate != "clipped"
    assert whole or 0 < int((gradient == 0).sum()) < len(gradient)


@pytest.mark.parametrize("normalised", [False, True])
def test_rloo_is_trl_s(normalised: bool) -> None:
    """The loss of `RLOOTrainer` on ratios of whole answers, and its advantages."""
    config = GRPOConfig(ratio="product", scale_by_std=normalised, leave_one_out=True)
    objective = build_objective(config)
    batch, logits = batch_of()
    logps = token_logps(logits, batch).detach().requires_grad_()
    trainer = object.__new__(RLOOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.epsilon_low, trainer.epsilon_high = config.clip_low, config.clip_high
    trainer.aux_loss_enabled = False
    trainer._metrics = {"train": defaultdict(list)}
    table = padded(logps, batch)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (table, table.detach(), None)
    inputs = inputs_of(batch) | {"old_logps": batch.sequence_sum(batch.old)}
    oracle = trainer._compute_loss(trainer.model, inputs)
    (gradient,) = torch.autograd.grad(oracle, logps)
    torch.testing.assert_close(objective.loss(logps, batch), oracle, rtol=1e-10, atol=1e-14)
    rates = objective.token_weights(logps.detach(), batch)
    torch.testing.assert_close(rates, -gradient, rtol=1e-10, atol=1e-14)
    rewards = torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    others = (rewards.sum() - rewards) / 3
    expected = rewards - others
    if normalised:
        expected = expected / (rewards.std() + 1e-4)
    found = group_advantages(rewards, scale_by_std=normalised, leave_one_out=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_model_s_gradient_at_a_temperature_is_trl_s(temperature):
    """From token ids to the weights' gradient: collation and temperature included."""
    config = GRPOConfig(aggregation="dapo", kl=0.1)
    batch, _ = batch_of(temperature=temperature)
    ours = model(0)
    with torch.no_grad():
        scored = {
            name: token_logps(ResponseLogits(model(seed))(batch), batch)
            for name, seed in (("old", 1), ("reference", 2))
        }
    batch = replace(batch, advantage=batch.advantage.float(), **scored)
    loss = build_objective(config).loss(token_logps(ResponseLogits(ours)(batch), batch), batch)

    theirs, trainer = model(0), bare_trainer(config)
    add_fused_lm_head(theirs, temperature=temperature, outputs=("log_probs", "entropy"))
    oracle = trainer._compute_loss(theirs, inputs_of(batch))
    torch.testing.assert_close(loss, oracle, rtol=1e-5, atol=1e-6)
    gradients = [gradient(ours, loss), gradient(theirs, oracle)]
    assert (gradients[0] - gradients[1]).norm() / gradients[1].norm() < 1e-5
