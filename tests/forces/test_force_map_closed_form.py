"""A linear-softmax model, whose kernel is known on paper."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction, force_map
from dynolab.objectives import SFT, SFTConfig
from tests.forces.small_models import encoded, pair, relative

VOCABULARY, WIDTH = 50, 7


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, input_ids, **more):  # type: ignore[no-untyped-def]
        return SimpleNamespace(last_hidden_state=self.embed(input_ids))


class LinearSoftmax(nn.Module):
    """`z_m = W x_m`, x_m the embedding of the token before m."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(_attn_implementation="sdpa")
        self.base_model = Body()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=True)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.embed


@pytest.mark.parametrize("route", ["columns", "rows", "both_sides"])
def test_the_map_is_the_paper_s_formula(route):
    """K_{m,l} = (x_m·x_l + 1) I + [same token before m and l] W Wᵀ: head with bias, embedding."""
    model = LinearSoftmax().double()
    policy = PolicyFunction(model, torch.float64)
    observed, example, eta = encoded(4, 3, 6), pair(5, chosen=7), 0.3
    found = force_map(policy, [observed], [example], SFT(SFTConfig()), update=eta, route=route)

    W = model.head.weight.detach()
    x_o, p_o, y_o, before_o = parts(model, observed)
    x_u, p_u, y_u, before_u = parts(model, example.chosen)
    A = torch.eye(VOCABULARY) - torch.ones(VOCABULARY, 1) * p_o[:, None, :]
    G = p_u - torch.eye(VOCABULARY, dtype=torch.float64)[y_u]
    same = (before_o[:, None] == before_u).double()
    K = (x_o @ x_u.T + 1)[..., None, None] * torch.eye(VOCABULARY) + same[..., None, None] * (
        W @ W.T
    )
    whole = -eta * torch.einsum("mvw,mlwz,lz->mlv", A, K, G)
    truth = whole[torch.arange(len(y_o)), :, y_o]
    assert relative(torch.tensor(found.force), truth) < 1e-12
    # The change of all log-probabilities keeps them normalised: Σ_v π_v Δ log π_v = 0.
    assert torch.einsum("mv,mlv->ml", p_o, whole).abs().max() < 1e-14
    transposed = torch.einsum("mwv,mlwz,lz->mlv", A, K, G)[torch.arange(len(y_o)), :, y_o]
    assert relative(-eta * transposed, truth) > 0.01


def parts(model: LinearSoftmax, one: Encoded) -> tuple[torch.Tensor, ...]:
    """Features, probabilities, response tokens and the tokens before them."""
    before = torch.tensor(one.ids[one.prompt_length - 1 : -1])
    with torch.no_grad():
        x = model.base_model.embed(before)
        return x, model.head(x).softmax(-1), torch.tensor(one.ids[one.prompt_length :]), before
