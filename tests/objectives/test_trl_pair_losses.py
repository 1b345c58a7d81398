"""Every loss on pairs that TRL has too, against TRL's own code on the same log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl import DPOTrainer
from trl.experimental.cpo import CPOTrainer

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate_examples, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.objectives import (
    DPOConfig,
    HingeConfig,
    IPOConfig,
    RobustDPOConfig,
    SimPOConfig,
    SPPOConfig,
    build_objective,
)

LENGTHS = [(3, 5), (1, 4), (6, 2), (2, 2)]
PROMPT = 2
SIDES = (CHOSEN, REJECTED)

DPO_FAMILY = [
    ("sigmoid", {}, DPOConfig(beta=0.3)),
    ("robust", {"label_smoothing": 0.15}, RobustDPOConfig(beta=0.3, label_smoothing=0.15)),
    ("hinge", {}, HingeConfig(beta=0.3)),
    ("ipo", {}, IPOConfig(beta=0.3, normalise="mean")),
    ("sppo_hard", {}, SPPOConfig(beta=0.3)),
]
CPO_FAMILY = [
    ("simpo", {"simpo_gamma": 0.7}, SimPOConfig(beta=1.3, margin=0.7)),
    ("sigmoid", {"label_smoothing": 0.2}, DPOConfig(beta=0.3, label_smoothing=0.2)),
    ("ipo", {}, IPOConfig(beta=0.3, normalise="sum")),
]


def batch() -> TokenBatch:
    examples = [
        EncodedExample(str(n), *(Encoded(tuple(range(PROMPT + k)), PROMPT) for k in lengths))
        for n, lengths in enumerate(LENGTHS)
    ]
    plain = collate_examples(examples, 0, SIDES, count_totals(examples, SIDES))
    return replace(plain, reference=log_probabilities(1, len(plain.token)))


def log_probabilities(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -3 * torch.rand(count, generator=generator, dtype=torch.float64)


def padded(values: Tensor, tokens: TokenBatch) -> Tensor:
    """Per-token values as TRL lays them out: all chosen rows, then all rejected, zero elsewhere."""
    rows = torch.cat([torch.nonzero(tokens.side == side).squeeze(1) for side in SIDES])
    table = values.new_zeros(len(tokens.side), tokens.input_ids.shape[1] - 1)
    return table.index_put((tokens.sequence, tokens.position), values)[rows]


def dpo_trainer_loss(kind: str, settings: dict[str, float], logps: Tensor, tokens: TokenBatch):
    """`DPOTrainer._compute_loss` of a trainer that was given the few attributes it reads."""
    trainer = object.__new__(DPOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.aux_loss_enabled = trainer.use_weighting = False
    trainer.ld_alpha = None
    trainer.precompute_ref_logps = True
    trainer.f_divergence_type = "reverse_kl"
    trainer.loss_types, trainer.loss_weights = [kind], [1.0]
    trainer.beta = 0.3
    trainer.label_smoothing = settings.get("label_smoothing", 0.0)
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    trainer._metrics = {"train": defaultdict(list)}

    table = padded(logps, tokens)
    mask = torch.nn.functional.pad(padded(torch.ones_like(logps), tokens).long(), (1, 0))
    answer = SimpleNamespace(
        log_probs=table,
        entropy=table.detach(),
        mean_logits=table.detach(),
        is_top1=table > 0,
    )
    chosen, rejected = padded(tokens.reference, tokens).sum(1).chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    return trainer._compute_loss(lambda **_: answer, inputs, False)


def cpo_trainer_loss(kind: str, settings: dict[str, float], logps: Tensor, tokens: TokenBatch):
    """`CPOTrainer.cpo_loss`, which knows no reference: log-ratios stand in where ours has one."""
    trainer = object.__new__(CPOTrainer)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.alpha, trainer.loss_type = 0.0, kind
    trainer.beta = 1.3 if kind == "simpo" else 0.3
    trainer.simpo_gamma = settings.get("simpo_gamma", 0.0)
    trainer.label_smoothing = settings.get("label_smoothing", 0.0)
    if kind == "simpo":
        total = padded(logps, tokens).sum(1) / padded(torch.ones_like(logps), tokens).sum(1)
    else:
        total = padded(logps - tokens.reference, tokens).sum(1)
    losses, _, _ = trainer.cpo_loss(*total.chunk(2))
    return losses.mean()


@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize(
    ("theirs", "kind", "settings", "config"),
    [(dpo_trainer_loss, *case) for case in DPO_FAMILY]
    + [(cpo_trainer_loss, *case) for case in CPO_FAMILY],
    ids=[f"dpo-{kind}" for kind, *_ in DPO_FAMILY] + [f"cpo-{kind}" for kind, *_ in CPO_FAMILY],
)
def test_loss_and_weights_are_trl_s(theirs, kind, settings, config, seed):
    tokens, objective = batch(), build_objective(config)
    logps = log_probabilities(10 + seed, len(tokens.token)).requires_grad_()
    oracle = theirs(kind, settings, logps, tokens)
    (gradient,) = torch.autograd.grad(oracle, logps)
    torch.testing.assert_close(objective.loss(logps, tokens), oracle, rtol=1e-12, atol=0)
    rates = objective.token_weights(logps.detach(), tokens)
    torch.testing.assert_close(rates, -gradient, rtol=1e-10, atol=1e-14)
    assert gradient.abs().min() > 0


def test_the_two_forms_of_ipo_differ():
    tokens = batch()
    logps = log_probabilities(10, len(tokens.token))
    summed, averaged = (
        build_objective(IPOConfig(beta=0.3, normalise=form)).loss(logps, tokens)
        for form in ("sum", "mean")
    )
    assert abs(float(summed - averaged)) > 0.1
