"""Packed rows and logits read in parts, against the plain forward of one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import dynolab.likelihood.decoder
from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import PackedBatch, Row, share_prompts
from dynolab.errors import ConfigError
from dynolab.forces.function.views import dtype_preserving
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps
from tests.forces.families import FAMILIES, GROUPED, build
from tests.forces.small_models import COMMON, VOCABULARY

WINDOW = 4


WINDOWED: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral_window": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=WINDOW)),
    "qwen2_window": lambda: Qwen2ForCausalLM(  # in one layer of two
        Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
}


def model_of(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    if family not in WINDOWED:
        return build(family, dtype)
    torch.manual_seed(0)
    return WINDOWED[family]().to(dtype).eval()


def sequences_of(shape: list[tuple[int, list[int]]]) -> tuple[list[Encoded], list[Row]]:
    """Prompts of given lengths with responses of given lengths, a row per prompt."""
    generator = torch.Generator().manual_seed(3)
    sequences: list[Encoded] = []
    rows: list[Row] = []
    for prompt, responses in shape:
        first = torch.randint(3, VOCABULARY, (prompt,), generator=generator).tolist()
        rows.append(list(range(len(sequences), len(sequences) + len(responses))))
        for length in responses:
            own = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
            sequences.append(Encoded((*first, *own), prompt))
    return sequences, rows


SHAPES = {
    "a pair": [(6, [5, 3])],
    "thirteen responses": [(7, [1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 1, 4])],
    "one token each": [(1, [1, 1])],
    "several prompts": [(1, [4, 2, 7]), (9, [1, 3]), (5, [6]), (12, [2, 2, 8])],
}


def packed(shape: str) -> tuple[list[Encoded], TokenBatch]:
    sequences, rows = sequences_of(SHAPES[shape])
    batch = share_prompts(collate(sequences, 0), rows)
    assert isinstance(batch, PackedBatch)
    return sequences, batch


def one_by_one(model: PreTrainedModel, sequences: list[Encoded]) -> Tensor:
    """Log-probabilities of every response token by the model's own forward of one sequence."""
    parts = []
    for sequence in sequences:
        ids = torch.tensor([sequence.ids])
        logits = model(input_ids=ids).logits[0, sequence.prompt_length - 1 : -1]
        parts.append(
            logits.log_softmax(-1).gather(-1, ids[0, sequence.prompt_length :, None])[:, 0]
        )
    return torch.cat(parts)


def weighted_gradient(model: PreTrainedModel, logps: Tensor) -> list[Tensor]:
    """Gradient of a sum of the log-probabilities in which each has a weight of its own."""
    weights = torch.linspace(-1, 2, len(logps), dtype=logps.dtype)
    return list(torch.autograd.grad((weights * logps).sum(), list(model.parameters())))


@contextmanager
def parts_of(monkeypatch: pytest.MonkeyPatch, tokens: int) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(dynolab.likelihood.decoder, "LOGITS_BYTES", 4 * VOCABULARY * tokens)
        yield


def test_gradients_of_shared_prompts_are_added_in_one_order():
    """To the bit, on several threads: many responses read their prompt's last position."""
    model = model_of("llama_tied", torch.float32).requires_grad_(True)
    sequences, rows = sequences_of([(6, [1] * 3000)])
    batch = share_prompts(collate(sequences, 0), rows)
    logits = ResponseLogits(model)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        gradients = []
        for _ in range(12):
            hidden = logits.hidden(batch)
            weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
            model.zero_grad()
            (weights * hidden).sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.model.parameters()]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(gradients[0], each) for each in gradients)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", [*FAMILIES, *WINDOWED])
def test_packed_rows_equal_one_sequence_at_a_time(
    family: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(family)
    sequences, batch = packed(shape)
    with dtype_preserving(model), parts_of(monkeypatch, 3):
        truth = one_by_one(model, sequences)
        logps = ResponseLogits(model)(batch, token_logps)
        torch.testing.assert_close(logps, truth, atol=1e-10, rtol=0)
        torch.testing.assert_close(
            weighted_gradient(model, logps), weighted_gradient(model, truth), atol=1e-10, rtol=1e-9
        )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [*FAMILIES, *WINDOWED])
def test_packed_rows_equal_one_sequence_at_a_time_in_float32(family: str, attention: str) -> None:
    model = model_of(family, torch.float32)
    model.set_attn_implementation(attention)
    sequences, batch = packed("several prompts")
    truth = one_by_one(model, sequences)
    logps = ResponseLogits(model)(batch, token_logps)
    torch.testing.assert_close(logps, truth, atol=1e-4, rtol=0)
    torch.testing.assert_close(
        weighted_gradient(model, logps), weighted_gradient(model, truth), atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("family", WINDOWED)
def test_the_sliding_window_matters_to_these_models(family: str) -> None:
    model = model_of(family)
    _, batch = packed("several prompts")
    narrow = ResponseLogits(model)(batch, token_logps)
    model.config.sliding_window = 1000
    assert (ResponseLogits(model)(batch, token_logps) - narrow).abs().max() > 1e-3


@torch.no_grad()
def test_responses_of_one_row_do_not_touch_each_other() -> None:
    model = ResponseLogits(model_of("gpt_neox"))
    _, batch = packed("several prompts")
    assert isinstance(batch, PackedBatch)
    before = model(batch, token_logps)
    batch.input_ids[batch.segment == 2] = 9
    batch.input_ids[batch.segment < 0] = 11
    second = torch.cat([batch.segment[0], batch.segment[1]])
    assert (second == 2).any()
    same = before == model(batch, token_logps)
    row, place = batch.row[batch.sequence], batch.position
    assert same[batch.segment[row, place] != 2].all()
    assert not same[batch.segment[row, place] == 2].any()


@pytest.mark.parametrize("tokens", [1, 4, 1000])
def test_reading_in_parts_changes_neither_values_nor_gradients(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("llama_tied")
    _, batch = packed("several prompts")
    logits = ResponseLogits(model)
    whole = token_logps(logits(batch), batch)
    with parts_of(monkeypatch, tokens):
        parts = logits(batch, token_logps)
        gradient = weighted_gradient(model, parts)
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradient, weighted_gradient(model, whole), atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("grad", [True, False])
def test_never_more_logits_than_a_part_exist(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama_tied")
    logits = ResponseLogits(model)
    _, batch = packed("several prompts")
    sizes: list[int] = []
    kept: list[int] = []
    hook = model.get_output_embeddings().register_forward_hook(
        lambda _, inputs, output: sizes.append(output.shape[1])
    )
    saved = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (kept.append(tensor.shape[-1]), tensor)[1], lambda tensor: tensor
    )
    with parts_of(monkeypatch, 4), torch.set_grad_enabled(grad):
        with saved:
            total = logits(batch, token_logps).sum()
        assert VOCABULARY not in kept
        if grad:
            total.backward()
    hook.remove()
    assert max(sizes) == 4
    assert sum(sizes) == len(batch.token) * (2 if grad else 1)


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied", "gpt2", "qwen2_window"])
def test_forward_mode_goes_through_packed_rows_and_parts(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(family)
    _, batch = packed("several prompts")
    logits = ResponseLogits(model)
    weights = {name: p.detach() for name, p in logits.named_parameters()}
    generator = torch.Generator().manual_seed(4)
    tangents = {
        name: torch.randn(2, *w.shape, generator=generator, dtype=w.dtype)
        for name, w in weights.items()
    }

    def logps(at: dict[str, Tensor]) -> Tensor:
        return functional_call(logits, at, (batch, token_logps))

    def along(tangent: dict[str, Tensor]) -> Tensor:
        return jvp(logps, (weights,), (tangent,))[1]

    cotangent = torch.linspace(-1, 2, len(batch.token), dtype=torch.float64)
    with dtype_preserving(model), sdpa_kernel(SDPBackend.MATH), parts_of(monkeypatch, 5):
        forward = vmap(along)(tangents) @ cotangent
        gradient = weighted_gradient(model, logits(batch, token_logps))
    named = zip(dict(logits.named_parameters()), gradient, strict=True)
    backward = sum(torch.einsum("k...,...->k", tangents[name], g) for name, g in named)
    torch.testing.assert_close(forward, backward, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bf16_weights_give_float32_log_probabilities(attention: str) -> None:
    model = model_of("llama_tied", torch.bfloat16)
    model.set_attn_implementation(attention)
    sequences, batch = packed("several prompts")
    logps = ResponseLogits(model)(batch, token_logps)
    assert logps.dtype == torch.float32
    torch.testing.assert_close(logps, one_by_one(model, sequences).float(), atol=0.15, rtol=0)


@pytest.mark.parametrize("family", [*FAMILIES, *WINDOWED])
def test_models_with_attention_by_positions_are_packed(family: str) -> None:
    assert packing_width(ResponseLogits(model_of(family))) == COMMON["hidden_size"]


def test_models_that_place_tokens_by_the_row_are_told_apart() -> None:
    small = {"vocab_size": VOCABULARY, "hidden_size": 16}
    local = GPTNeoForCausalLM(
        GPTNeoConfig(**small, num_layers=2, num_heads=2, attention_types=[[["global", "local"], 1]])
    )
    biased = BloomForCausalLM(BloomConfig(**small, n_layer=1, n_head=2))
    for model in (local, biased):
        logits = ResponseLogits(model)
        assert packing_width(logits) is None
        with pytest.raises(ConfigError, match="rows of one sequence"):
            logits(packed("a pair")[1])


def test_rows_longer_than_the_context_are_no_obstacle() -> None:
    sequences, rows = sequences_of([(8, [12] * 6)])
    batch = share_prompts(collate(sequences, 0), rows)
    assert batch.input_ids.shape[1] > COMMON["max_position_embeddings"]
    model = model_of("gpt2")
    logps = ResponseLogits(model)(batch, token_logps)
    torch.testing.assert_close(logps, one_by_one(model, sequences), atol=1e-10, rtol=0)
