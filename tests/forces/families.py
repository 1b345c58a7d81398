"""One small random model of every supported family, and the truth about its force map."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from dynolab.data.batches import CHOSEN, collate
from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction, central_difference
from dynolab.training.record import RecordedExample
from tests.forces.small_models import COMMON, llama, neox

GROUPED = {**COMMON, "num_key_value_heads": 2}


def _llama_untied() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**GROUPED, tie_word_embeddings=False))


def _gpt2() -> PreTrainedModel:
    own = {key: value for key, value in COMMON.items() if key != "intermediate_size"}
    return GPT2LMHeadModel(GPT2Config(**own))


FAMILIES = {
    "gpt_neox": neox,
    "llama_tied": llama,
    "llama_untied": _llama_untied,
    "gpt2": _gpt2,
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED)),
}


def build(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    torch.manual_seed(0)
    return FAMILIES[family]().to(dtype).eval()


def dpo_map_by_differences(
    policy: PolicyFunction, observed: Encoded, example: RecordedExample, *, beta: float, eta: float
) -> Tensor:
    """A step on one loss token at a time, by forwards of moved weights alone.

    The gradient is autograd's of a dense log-softmax, c_l is written out for DPO, and the push is
    a central difference: nothing of it is shared with the engine's routes.
    """
    margin = sum(
        sign * beta * (dense_logps(policy, {}, one).detach().sum() - sum(reference))
        for sign, one, reference in (
            (1, example.chosen, example.chosen_reference),
            (-1, example.rejected, example.rejected_reference),
        )
    )
    rate = beta * (1 - torch.sigmoid(margin))
    columns = []
    for side, one in enumerate((example.chosen, example.rejected)):
        leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
        sign = 1 if side == CHOSEN else -1
        for logp in dense_logps(policy, leaves, one):
            loss = -sign * rate * logp
            gradient = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
            step = {name: -eta * g for name, g in zip(leaves, gradient, strict=True)}
            batch = collate([observed], 0)
            columns.append(central_difference(policy, policy.weights, step, batch))
    return torch.stack(columns, dim=1)


def dense_logps(policy: PolicyFunction, weights: dict[str, Tensor], one: Encoded) -> Tensor:
    logits = policy.logits(weights, collate([one], 0))
    dense = logits - logits.exp().sum(-1, keepdim=True).log()
    return torch.stack([dense[n, t] for n, t in enumerate(one.ids[one.prompt_length :])])
