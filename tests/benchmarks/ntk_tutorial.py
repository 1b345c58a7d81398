"""torch.func's NTK tutorial on response tokens: the reference that the force engine is timed by."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from dynolab.data.encode import Encoded
from dynolab.likelihood import ResponseLogits

CHUNK = 4


def tutorial(
    model: PreTrainedModel, observed: list[Encoded], updating: list[Encoded], *, tuned: bool = False
) -> Tensor:
    """torch.func's NTK by Jacobian contraction: per-sample Jacobians, then an einsum a parameter.

    As the tutorial writes it, `vmap(jacrev(f), (None, 0))` of all samples at once, with one
    Jacobian row a response token: f gives realised log-probabilities alone, with the head only
    where a response stands, and attention by the math kernel, which vmap has a rule for. `tuned`
    adds what the tutorial lacks: a few samples at a time.
    """
    logits, prompt = ResponseLogits(model), observed[0].prompt_length
    weights = {name: p.detach() for name, p in logits.named_parameters()}

    def logps(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
        hidden = functional_call(
            model.base_model, {k.split(".", 2)[2]: v for k, v in weights.items() if in_body(k)},
            (ids[None],), {"use_cache": False},
        ).last_hidden_state[0, prompt - 1 : -1]  # fmt: skip
        out = hidden @ head(weights).T
        return torch.log_softmax(out, -1).gather(-1, ids[prompt:, None]).squeeze(-1)

    names = list(weights)
    body = f"model.{model.base_model_prefix}."

    def in_body(name: str) -> bool:
        return name.startswith(body)

    output = model.get_output_embeddings().weight
    (head_name,) = [n for n, p in logits.named_parameters() if p is output]

    def head(weights: dict[str, Tensor]) -> Tensor:
        return weights[head_name]

    def jacobians(side: list[Encoded]) -> dict[str, Tensor]:
        ids = torch.tensor([one.ids for one in side])
        return vmap(jacrev(logps), (None, 0), chunk_size=CHUNK if tuned else None)(weights, ids)

    with sdpa_kernel(SDPBackend.MATH):
        left, right = jacobians(observed), jacobians(updating)
    total: Tensor | int = 0
    for name in names:
        one, other = (side.pop(name).flatten(2).flatten(0, 1) for side in (left, right))
        total = total + torch.einsum("mp,lp->ml", one, other)
    assert isinstance(total, Tensor)
    return total / len(updating)
