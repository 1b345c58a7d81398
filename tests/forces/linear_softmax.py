"""A linear-softmax model, whose tangent kernel is known on paper."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoded
from tests.forces.small_models import VOCABULARY

WIDTH = 7


class LinearSoftmax(nn.Module):
    """`z_m = W x_m + b`, x_m the embedding of the token before m."""

    base_model_prefix = "base_model"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        shape = SimpleNamespace(vocab_size=VOCABULARY, hidden_size=WIDTH)
        self.config = SimpleNamespace(_attn_implementation="sdpa", get_text_config=lambda: shape)
        self.base_model = _Body()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=True)

    def forward(self, input_ids=None, use_cache=False):  # type: ignore[no-untyped-def]
        return SimpleNamespace(logits=self.head(self.base_model(input_ids).last_hidden_state))

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embed

    @torch.no_grad()
    def logits(self, one: Encoded) -> Tensor:
        """Logits that predict each response token."""
        return self.head(self.base_model.embed(_before(one)))

    @torch.no_grad()
    def kernel_times(self, observed: Encoded, updating: Encoded, G: Tensor) -> Tensor:
        """`K_{m,l} G_l` for all m and l, observed × updating × vocabulary.

        `K_{m,l} = (x_m·x_l + 1) I + [same token before m and l] W Wᵀ`: head, its bias, embedding.
        """
        before_o, before_u = _before(observed), _before(updating)
        x_o, x_u = self.base_model.embed(before_o), self.base_model.embed(before_u)
        W = self.head.weight
        same = (before_o[:, None] == before_u).to(G.dtype)
        return (x_o @ x_u.T + 1)[..., None] * G + same[..., None] * (G @ W @ W.T)


class _Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, input_ids, **more):  # type: ignore[no-untyped-def]
        return SimpleNamespace(last_hidden_state=self.embed(input_ids))


def _before(one: Encoded) -> Tensor:
    return torch.tensor(one.ids[one.prompt_length - 1 : -1])
