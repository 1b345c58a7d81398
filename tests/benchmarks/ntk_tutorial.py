"""torch.func's NTK tutorial on response tokens: the reference that the force engine is timed by."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedModel

from dynolab.data.encode import Encoded

Logps = Callable[[dict[str, Tensor], Tensor], Tensor]


def tutorial(
    model: PreTrainedModel, observed: list[Encoded], updating: list[Encoded], *, lean: bool = False
) -> Tensor:
    """torch.func's NTK by Jacobian contraction: per-sample Jacobians, then an einsum a parameter.

    As the tutorial writes it, `vmap(jacrev(f), (None, 0))` of all samples at once, f calling the
    model, with one Jacobian row a response token, and attention by the math kernel, which vmap has
    a rule for. `lean` adds what the tutorial leaves to its reader: a head that is called where a
    response stands alone.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}
    prompt = observed[0].prompt_length
    logps = _lean(model, prompt) if lean else _plain(model, prompt)

    def jacobians(side: list[Encoded]) -> dict[str, Tensor]:
        ids = torch.tensor([sequence.ids for sequence in side])
        return vmap(jacrev(logps), (None, 0))(weights, ids)

    with sdpa_kernel(SDPBackend.MATH):
        left, right = jacobians(observed), jacobians(updating)
    total: Tensor | int = 0
    for name in weights:
        one, other = (side.pop(name).flatten(2).flatten(0, 1) for side in (left, right))
        total = total + torch.einsum("mp,lp->ml", one, other)
    assert isinstance(total, Tensor)
    return total / len(updating)


def _plain(model: PreTrainedModel, prompt: int) -> Logps:
    def logps(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
        logits = functional_call(model, weights, (ids[None],), {"use_cache": False}).logits
        return _realised(logits[0, prompt - 1 : -1], ids[prompt:])

    return logps


def _lean(model: PreTrainedModel, prompt: int) -> Logps:
    body, output = f"{model.base_model_prefix}.", model.get_output_embeddings().weight
    (head,) = [name for name, p in model.named_parameters() if p is output]

    def logps(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
        inner = {name.removeprefix(body): w for name, w in weights.items() if name.startswith(body)}
        hidden = functional_call(model.base_model, inner, (ids[None],), {"use_cache": False})
        kept = hidden.last_hidden_state[0, prompt - 1 : -1]
        return _realised(kept @ weights[head].T, ids[prompt:])

    return logps


def _realised(logits: Tensor, tokens: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1).gather(-1, tokens[:, None]).squeeze(-1)
