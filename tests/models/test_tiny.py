from __future__ import annotations

import torch

from dynolab.data.world.world import WorldConfig, build_world
from models.tiny import TinyConfig, build_tiny
from tests.training.small import distance

TOKENIZER = build_world(WorldConfig()).tokenizer()


def test_default_shape() -> None:
    model = build_tiny(TinyConfig(), TOKENIZER)
    assert 550_000 < sum(weights.numel() for weights in model.parameters()) < 700_000
    assert model.config.num_hidden_layers == 3
    assert model.get_output_embeddings().weight.shape[0] == len(TOKENIZER)


def test_seeded_and_leaves_the_callers_random_state() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (
        build_tiny(TinyConfig(seed=seed), TOKENIZER).state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(before, torch.get_rng_state())
    assert distance(first, again) == 0.0 < distance(first, other)


def test_no_dropout_in_training_mode() -> None:
    model = build_tiny(TinyConfig(), TOKENIZER).train()
    ids = torch.tensor([[1, 5, 6, 7]])
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_attention_backends_agree() -> None:
    ids = torch.tensor([[1, 5, 6, 7]])
    sdpa, eager = (
        build_tiny(TinyConfig(), TOKENIZER, attention=name)(ids).logits
        for name in ("sdpa", "eager")
    )
    torch.testing.assert_close(sdpa, eager, atol=1e-5, rtol=1e-5)
