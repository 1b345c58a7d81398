"""Every loss on pairs that TRL has too, against TRL's own code on the same log-probabilities."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from trl import DPOConfig as TrlConfig, DPOTrainer, KTOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate_examples, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.objectives import (
    CPOConfig,
    DPOConfig,
    HingeConfig,
    IPOConfig,
    KTOConfig,
    ORPOConfig,
    RobustDPOConfig,
    SimPOConfig,
    SPPOConfig,
    build_objective,
)
from dynolab.objectives.dpo import LossType

LENGTHS = [(3, 5), (1, 4), (6, 2), (2, 2)]
PROMPT = 2
SIDES = (CHOSEN, REJECTED)

TRL_LOSSES: tuple[str, ...] = (
    "sigmoid",
    "hinge",
    "ipo",
    "exo_pair",
    "nca_pair",
    "robust",
    "bco_pair",
    "sppo_hard",
    "apo_zero",
    "apo_down",
    "discopop",
    "sft",
    "sigmoid_norm",
)
"""All of `DPOConfig.loss_type` but `aot` and `aot_unpaired`."""
SMOOTHED = ("exo_pair", "robust")
DIVERGENCES = ("forward_kl", "js_divergence", "alpha_divergence")


def dpo(*kinds: str, **settings) -> tuple[str, DPOConfig]:
    if set(kinds) & set(SMOOTHED):
        settings["label_smoothing"] = 0.15
    name = "+".join([*kinds, *(f"{key}={value}" for key, value in settings.items())])
    return name, DPOConfig(beta=0.3, loss_type=kinds, **settings)


DPO_FAMILY: dict[str, tuple[DPOConfig, object]] = {
    name: (config, config)
    for name, config in (
        *(dpo(kind) for kind in TRL_LOSSES),
        *(dpo("sigmoid", f_divergence_type=kind) for kind in DIVERGENCES),
        dpo("ipo", f_divergence_type="forward_kl"),
        dpo("sigmoid", f_divergence_type="alpha_divergence", f_alpha_divergence_coef=1.7),
        dpo("sigmoid", ld_alpha=0.4),
        dpo("sigmoid", "sft"),
        dpo("sigmoid", "bco_pair", "sft", loss_weights=(0.8, 0.2, 1.0)),
        dpo("discopop", discopop_tau=0.2),
    )
} | {
    "robust_dpo": (
        dpo("robust")[1],
        RobustDPOConfig(beta=0.3, label_smoothing=0.15),
    ),
    "hinge": (dpo("hinge")[1], HingeConfig(beta=0.3)),
    "ipo-mean": (dpo("ipo")[1], IPOConfig(beta=0.3, normalise="mean")),
    "sppo": (dpo("sppo_hard")[1], SPPOConfig(beta=0.3)),
}
CPO_FAMILY: dict[str, tuple[CPOConfig | ORPOConfig, object]] = {
    kind: (config, config)
    for kind, config in {
        "cpo": CPOConfig(beta=0.3, label_smoothing=0.2),
        "cpo-hinge": CPOConfig(beta=0.05, loss_type="hinge", cpo_alpha=0.5),
        "cpo-ipo": CPOConfig(beta=0.3, loss_type="ipo"),
        "cpo-simpo": CPOConfig(beta=1.3, loss_type="simpo", simpo_gamma=0.7, label_smoothing=0.1),
        "alphapo": CPOConfig(beta=1.3, loss_type="simpo", alpha=0.25, cpo_alpha=0.0),
        "orpo": ORPOConfig(beta=0.4),
    }.items()
} | {
    "simpo": (
        CPOConfig(beta=1.3, loss_type="simpo", simpo_gamma=0.7, cpo_alpha=0.0),
        SimPOConfig(beta=1.3, margin=0.7),
    ),
}


def batch(dtype: torch.dtype = torch.float64) -> TokenBatch:
    examples = [
        EncodedExample(str(n), *(Encoded(tuple(range(PROMPT + k)), PROMPT) for k in lengths))
        for n, lengths in enumerate(LENGTHS)
    ]
    plain = collate_examples(examples, 0, SIDES, count_totals(examples, SIDES))
    return replace(plain, reference=log_probabilities(1, len(plain.token)).to(dtype))


def log_probabilities(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return -3 * torch.rand(count, generator=generator, dtype=torch.float64)


def padded(values: Tensor, tokens: TokenBatch) -> Tensor:
    """Per-token values as TRL lays them out: all chosen rows, then all rejected, zero elsewhere."""
    rows = torch.cat([torch.nonzero(tokens.side == side).squeeze(1) for side in SIDES])
    table = values.new_zeros(len(tokens.side), tokens.input_ids.shape[1] - 1)
    return table.index_put((tokens.sequence, tokens.position), values)[rows]


def dpo_trainer_loss(config: DPOConfig, logps: Tensor, tokens: TokenBatch) -> Tensor:
    """`DPOTrainer._compute_loss` of a trainer that was given the few attributes it reads."""
    trainer = object.__new__(DPOTrainer)
    trainer.model = torch.nn.Identity()
    trainer.model.is_gradient_checkpointing = False
    trainer.accelerator = Accelerator(cpu=True)
    trainer.aux_loss_enabled = trainer.use_weighting = False
    trainer.ld_alpha = config.ld_alpha
    trainer.precompute_ref_logps = config.ld_alpha is None
    trainer.f_divergence_type = config.f_divergence_type
    trainer.f_alpha_divergence_coef = config.f_alpha_divergence_coef
    trainer.loss_types = config.loss_type
    trainer.loss_weights = config.loss_weights or [1.0] * len(config.loss_type)
    trainer.beta, trainer.label_smoothing = config.beta, config.label_smoothing
    trainer.args = SimpleNamespace(
        discopop_tau=config.discopop_tau,
        gradient_checkpointing=False,
        gradient_checkpointing_kwargs=None,
    )
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    trainer._metrics = {"train": defaultdict(list)}

    table = padded(logps, tokens)
    mask = torch.nn.functional.pad(padded(torch.ones_like(logps), tokens).long(), (1, 0))

    def answer(log_probs: Tensor) -> SimpleNamespace:
        plain = log_probs.detach()
        return SimpleNamespace(
            log_probs=log_probs, entropy=plain, mean_logits=plain, is_top1=plain > 0
        )

    reference = padded(tokens.reference, tokens)
    trainer.ref_model = lambda **_: answer(reference)
    chosen, rejected = reference.sum(1).chunk(2)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": chosen,
        "ref_rejected_logps": rejected,
    }
    loss: Tensor = trainer._compute_loss(lambda **_: answer(table), inputs, False)
    return loss


def cpo_trainer_loss(config: CPOConfig | ORPOConfig, logps: Tensor, tokens: TokenBatch) -> Tensor:
    """`cpo_loss` or `odds_ratio_loss`, and the mean over the chosen answers' tokens."""
    rows, ones = padded(logps, tokens), padded(torch.ones_like(logps), tokens)
    likelihood = logps[tokens.token_side == CHOSEN].mean()
    means = (rows.sum(1) / ones.sum(1)).chunk(2)
    if isinstance(config, ORPOConfig):
        orpo = object.__new__(ORPOTrainer)
        orpo.accelerator, orpo.beta = Accelerator(cpu=True), config.beta
        losses, *_ = orpo.odds_ratio_loss(*means)
        return -likelihood - losses.mean()
    trainer = object.__new__(CPOTrainer)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.alpha, trainer.loss_type, trainer.beta = config.alpha, config.loss_type, config.beta
    trainer.simpo_gamma, trainer.label_smoothing = config.simpo_gamma, config.label_smoothing
    scores = means if config.loss_type in ("ipo", "simpo") else rows.sum(1).chunk(2)
    losses, _, _ = trainer.cpo_loss(*scores)
    return losses.mean() - config.cpo_alpha * likelihood


WIDE = [
    "sigmoid",
    "hinge",
    "ipo",
    "robust_dpo",
    "ipo-mean",
    "sppo",
    "cpo",
    "cpo-hinge",
    "cpo-ipo",
    "simpo",
]
"""Those whose exponentials cannot overflow."""


@pytest.mark.parametrize(
    ("name", "seed", "scale"),
    [(name, seed, 1) for name in [*DPO_FAMILY, *CPO_FAMILY] for seed in (0, 5)]
    + [(name, seed, 300) for name in WIDE for seed in (0, 5)],
)
def test_loss_and_weights_are_trl_s_however_wide_the_margin(
    name: str, seed: int, scale: int
) -> None:
    theirs, config = (DPO_FAMILY | CPO_FAMILY)[name]
    trainer_loss = dpo_trainer_loss if name in DPO_FAMILY else cpo_trainer_loss
    # `odds_ratio_loss` and the α-divergence compute in float32, and EXO's constants are float32.
    single = name == "orpo" or "alpha_divergence" in name or "exo" in name
    kind = torch.float32 if "alpha_divergence" in name else torch.float64
    tokens, objective = batch(kind), build_objective(config)
    logps = (scale * log_probabilities(10 + seed, len(tokens.token)).to(kind)).requires_grad_()
    oracle = trainer_loss(theirs, logps, tokens)
    (gradient,) = torch.autograd.grad(oracle, logps)
    loss = objective.loss(logps, tokens).to(oracle)
    torch.testing.assert_close(loss, oracle, rtol=1e-5 if single else 1e-12, atol=0)
    rates = objective.token_weights(logps.detach(), tokens)
    rounding = {"rtol": 1e-4, "atol": 1e-7} if single else {"rtol": 1e-10, "atol": 1e-14}
    torch.testing.assert_close(rates, -gradient, **rounding)
    pushed = gradient if name != "sft" else gradient[tokens.token_side == CHOSEN]
    assert scale > 1 or pushed.abs().min() > 0


@pytest.mark.parametrize("drift", [None, 0.0, 0.8])
def test_unpaired_loss_and_weights_are_trl_s(drift: float | None) -> None:
    """`KTOTrainer._compute_loss`, whose rows have one answer each; without drift it is APO-zero."""
    loss_type = "apo_zero_unpaired" if drift is None else "kto"
    config = KTOConfig(beta=0.3, loss_type=loss_type, desirable_weight=1.5, undesirable_weight=0.5)
    tokens, objective = batch(), build_objective(config)
    totals = replace(tokens.totals, examples=len(tokens.side))
    tokens = replace(tokens, totals=totals, drift=drift)
    logps = log_probabilities(10, len(tokens.token)).requires_grad_()
    trainer = object.__new__(KTOTrainer)
    trainer.model = SimpleNamespace(training=True)
    trainer.accelerator = Accelerator(cpu=True)
    trainer.aux_loss_enabled, trainer.calculate_KL = False, drift is not None
    after = torch.tensor([drift or 0.0, 3 * (drift or 0.0)], dtype=torch.float64)
    trainer._compute_kl_logps = lambda *_: after / 2
    trainer.precompute_ref_logps = True
    trainer.loss_type, trainer.beta = config.loss_type, config.beta
    trainer.desirable_weight = config.desirable_weight
    trainer.undesirable_weight = config.undesirable_weight
    trainer._metrics = {"train": defaultdict(list)}
    trainer._total_train_tokens, trainer._tp_size = 0, 1
    table = padded(logps, tokens)
    mask = torch.nn.functional.pad(padded(torch.ones_like(logps), tokens).long(), (1, 0))
    plain = table.detach()
    answer = SimpleNamespace(log_probs=table, entropy=plain, mean_logits=plain)
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "label": (torch.arange(len(mask)) < len(mask) // 2),
        "ref_KL_logps": torch.zeros_like(after),
        "ref_logps": padded(tokens.reference, tokens).sum(1),
    }
    oracle = trainer._compute_loss(lambda **_: answer, inputs, False)
    (gradient,) = torch.autograd.grad(oracle, logps)
    torch.testing.assert_close(objective.loss(logps, tokens), oracle, rtol=1e-12, atol=0)
    rates = objective.token_weights(logps.detach(), tokens)
    torch.testing.assert_close(rates, -gradient, rtol=1e-10, atol=1e-14)
    up, down = rates[tokens.token_side == CHOSEN], rates[tokens.token_side == REJECTED]
    assert (up > 0).all() and (down < 0).all()
    named = objective.metrics(logps, tokens)
    assert not any(value.requires_grad for value in named.values())


def test_no_loss_of_trl_is_forgotten() -> None:
    known = {kind for kinds in get_args(LossType) for kind in get_args(kinds)}
    assert set(TRL_LOSSES) == known - {"dpop", "shift"}
    listed = re.findall(r"`'(\w+)'`", inspect.getdoc(TrlConfig).partition("loss_type")[2])
    assert set(TRL_LOSSES) < set(listed)
