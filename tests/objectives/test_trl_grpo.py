"""Group relative policy optimisation against TRL's own loss on the same log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl import GRPOTrainer

from dynolab.data.batches import TokenBatch
from dynolab.likelihood import token_logps
from dynolab.objectives import GRPOConfig, build_objective
from tests.objectives.sampled import batch_of

LIMIT = 9
CONFIGS = [
    GRPOConfig(aggregation=aggregation, ratio=ratio, kl=kl, max_tokens=LIMIT, clip_high=0.28)
    for aggregation in ("grpo", "bnpo", "dr_grpo", "dapo")
    for ratio in ("token", "sequence")
    for kl in (0.0, 0.3)
]


def padded(values: Tensor, batch: TokenBatch) -> Tensor:
    """One row per completion, its response tokens from the left, zero elsewhere."""
    first = torch.cat([batch.sequence.new_zeros(1), batch.sequence_length.cumsum(0)])
    column = torch.arange(len(values)) - first[batch.sequence]
    table = values.new_zeros(len(batch.side), int(batch.sequence_length.max()))
    return table.index_put((batch.sequence, column), values)


def trainer_loss(config: GRPOConfig, logps: Tensor, batch: TokenBatch) -> Tensor:
    """`GRPOTrainer._compute_loss` of a trainer that was given the few attributes it reads."""
    trainer = object.__new__(GRPOTrainer)
    table = padded(logps, batch)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (table, table.detach(), None)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.args = SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
    trainer.loss_type, trainer.importance_sampling_level = config.aggregation, config.ratio
    trainer.beta = config.kl
    trainer.epsilon_low, trainer.epsilon_high = config.clip_low, config.clip_high
    trainer.max_completion_length = LIMIT
    trainer.current_gradient_accumulation_steps = 1
    trainer.top_entropy_quantile, trainer.off_policy_mask_threshold = 1.0, None
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = False
    trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
    trainer._metrics = {"train": defaultdict(list)}

    mask = padded(torch.ones_like(logps), batch).long()
    first = batch.sequence_length.cumsum(0) - batch.sequence_length
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch.advantage[first],
        "old_per_token_logps": padded(batch.old, batch),
        "ref_per_token_logps": padded(batch.reference, batch),
        "num_items_in_batch": mask.sum(),
    }
    return trainer._compute_loss(trainer.model, inputs)


@pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda one: f"{one.aggregation}-{one.ratio}-{one.kl}"
)
def test_loss_and_weights_are_trl_s(config):
    objective = build_objective(config)
    batch, logits = batch_of()
    logps = token_logps(logits, batch).detach().requires_grad_()
    oracle = trainer_loss(config, logps, batch)
    (gradient,) = torch.autograd.grad(oracle, logps)
    torch.testing.assert_close(objective.loss(logps, batch), oracle, rtol=1e-10, atol=1e-14)
    rates = objective.learning_rates(logps.detach(), batch)
    torch.testing.assert_close(rates, -gradient, rtol=1e-10, atol=1e-14)
    assert config.kl or 0 < int((gradient == 0).sum()) < len(gradient)
