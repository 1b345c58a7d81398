"""The layouts in which a model reads sequences, each checked against the model's own forward."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import share_prompts
from dynolab.errors import ConfigError
from dynolab.likelihood.checked import ModelCheck, first_line, try_ways
from dynolab.likelihood.decoder import (
    attention_mask,
    logits_of,
    next_logits,
    pad_left,
    plain_logits,
    run_decoder,
)
from dynolab.likelihood.streamed import device_of

Layout = Literal["alone", "padded", "packed"]
PLAIN: tuple[Layout, ...] = ("alone", "padded")

ROUNDING = {
    torch.float64: (1e-6, 1e-5),
    torch.float32: (1e-5, 1e-3),
    torch.float16: (0.02, 0.05),
    torch.bfloat16: (0.15, 0.3),
}
"""Lower and upper bound of the tolerance for rounding between layouts, in nats, by dtype."""

CONTEXT_SHARE = 0.02
"""Between these bounds, the tolerance as a share of what another prompt changes: an untrained model
hardly uses its context, so a wrong layout changes its log-probabilities just as little."""

LONG = 300
"""Tokens of the first response in the packed row: more than the window of GPT-Neo's local
attention, which counts positions in the row."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Layouts(ModelCheck[Layout]):
    """How far each layout's log-probabilities lie from the model's own forward, in nats at most."""

    attention: str
    dtype: str

    def difference(self, layout: Layout) -> str:
        """Describes a layout's deviation for a message."""
        if layout in self.reasons:
            return f"it fails ({self.reasons[layout]})"
        return f"log-probabilities differ by {self.errors[layout]:.2g} nats"


def response_hidden(causal: nn.Module, batch: TokenBatch) -> Float[Tensor, "tokens features"]:
    """Last hidden states of the decoder, from which each response token is predicted."""
    hidden = run_decoder(
        causal,
        input_ids=batch.input_ids,
        attention_mask=attention_mask(causal, batch),
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state
    # Responses share their prompt's last position. The gradients of what is read there are added
    # in one order by `embedding`; by indexing, in any order of the threads.
    place = batch.token_row * hidden.shape[1] + batch.position
    return functional.embedding(place, hidden.flatten(0, 1))


_measured: WeakKeyDictionary[nn.Module, dict[str, Layouts]] = WeakKeyDictionary()


def layouts_of(causal: nn.Module) -> Layouts:
    """The model's layouts, measured on first use and cached for every caller.

    Packed rows that disagree are not used, and a warning is logged.
    Agreement depends on the model's code, so a measurement holds while weights change.

    **Arguments:** `causal`: a causal language model of transformers. If its weights are
    partitioned over ranks, every rank must make this call.

    **Raises:** `ConfigError` for a module that is not a transformers model, and for a model whose
    log-probabilities differ from its own forward's even without shared prompts, alone or padded.
    """
    if not hasattr(causal, "base_model_prefix"):
        raise ConfigError(
            "model",
            type(causal).__name__,
            "give a causal language model of transformers (AutoModelForCausalLM)",
        )
    by_attention = _measured.setdefault(causal, {})
    attention = _attention(causal)
    if attention not in by_attention:
        layouts = measure_layouts(causal)
        for layout in PLAIN:
            if not layouts.agrees(layout):
                raise _unusable(layouts, layout)
        if not layouts.agrees("packed"):
            _log.warning(
                "%s shares no prompts (packed rows: %s): every response runs with its own prompt",
                layouts.model,
                layouts.difference("packed"),
            )
        by_attention[attention] = layouts
    layouts = by_attention[attention]
    layouts.note(f"{attention} {layouts.dtype}")
    return layouts


def _unusable(layouts: Layouts, layout: Layout) -> ConfigError:
    how = {
        "alone": "truncated after a response token, or run as decoder and head,",
        "padded": "padded on the right beside others",
    }[layout]
    return ConfigError(
        "model",
        layouts.model,
        f"a sequence {how} does not match model(input_ids): "
        f"{layouts.difference(layout)}, where {layouts.dtype} allows {layouts.tolerance:.1g}; "
        "give a causal decoder of transformers, whose tokens attend only to earlier ones, "
        "or another attention (sdpa, eager)",
    )


@torch.no_grad()
def measure_layouts(causal: nn.Module) -> Layouts:
    """Log-probabilities of a few random sequences by each layout against `model(input_ids)`.

    Runs the model in eval mode, then restores its modes. Attention windows of more than `LONG`
    tokens are not tested: the configuration is trusted.
    """
    training = causal.training
    modes = {module: module.training for module in causal.modules()} if training else {}
    causal.eval()
    try:
        return _measure(causal)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _measure(causal: Any) -> Layouts:
    sequences, long = _samples(causal)
    device = device_of(causal)
    try:
        truth = [_plain_logps(causal, sequence, device) for sequence in sequences]
    # A family's code, or its attention on this machine, may raise anything.
    except Exception as error:
        raise ConfigError(
            "model",
            type(causal).__name__,
            f"its own forward fails ({type(error).__name__}: {first_line(error)}) with attention "
            f"{_attention(causal)} in {next(causal.parameters()).dtype}; give a causal language "
            "model (AutoModelForCausalLM), or choose another attention (sdpa, eager) or dtype",
        ) from error
    ways: dict[Layout, Callable[[], float]] = {
        "alone": partial(_alone, causal, sequences[0], truth[0], device),
        "padded": partial(_error, causal, collate(sequences, 0), [0, 1, 2], truth, device),
        "packed": partial(
            _error,
            causal,
            share_prompts(collate([long, *sequences], 0), [[0, 1, 2], [3]]),
            [None, 0, 1, 2],
            truth,
            device,
        ),
    }
    errors, reasons = try_ways(ways)
    # The last two sequences have the same response after different prompts.
    context = _largest([truth[1] - truth[2]])
    dtype = next(causal.parameters()).dtype
    least, most = ROUNDING.get(dtype, ROUNDING[torch.bfloat16])
    return Layouts(
        model=type(causal).__name__,
        attention=_attention(causal),
        dtype=str(dtype).removeprefix("torch."),
        tolerance=min(most, max(least, CONTEXT_SHARE * context)),
        errors=errors,
        reasons=reasons,
    )


_decoding_errors: WeakKeyDictionary[nn.Module, float] = WeakKeyDictionary()


def check_decoding(causal: nn.Module) -> None:
    """Rejects a model whose token-by-token log-probabilities differ from its own forward's.

    Continues two prompts of different lengths from their cache, as `ModelGenerator` does.

    **Raises:** `ConfigError` if they differ, or if the model cannot continue from a cache.
    """
    if causal in _decoding_errors:
        return
    layouts = layouts_of(causal)
    reason = None
    try:
        with torch.no_grad():
            error = _largest(_token_by_token(causal))
    # It may raise anything, as in `_measure`.
    except Exception as problem:
        error, reason = math.inf, f"it fails ({type(problem).__name__}: {problem})"
    if error > layouts.tolerance:
        raise ConfigError(
            "model",
            layouts.model,
            "cannot be sampled in batches: continued from a prompt's cache, "
            + (reason or f"log-probabilities differ by {error:.2g} nats from its own forward's")
            + "; sample from a transformer that takes an attention mask and a DynamicCache",
        )
    _decoding_errors[causal] = error


def _token_by_token(causal: nn.Module) -> list[Float[Tensor, " sequences"]]:
    (first, _, after_another_prompt), _ = _samples(causal)
    pair = [first, after_another_prompt]
    device = device_of(causal)
    truth = [_plain_logps(causal, sequence, device) for sequence in pair]
    ids, mask = pad_left([sequence.ids[: sequence.prompt_length] for sequence in pair], 0)
    cache, differences = None, []
    for step in range(min(2, *(sequence.response_length for sequence in pair))):
        logits, cache = next_logits(causal, ids, mask, cache)
        cache.batch_select_indices(torch.arange(len(pair), device=device))
        ids = torch.tensor([[sequence.ids[sequence.prompt_length + step]] for sequence in pair])
        logps = _logps(logits, ids[:, 0].to(device))
        differences.append(_difference(logps, torch.stack([plain[step] for plain in truth])))
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
    return differences


def _samples(causal: Any) -> tuple[list[Encoded], Encoded]:
    """Two responses to a prompt, the second one after another prompt too, and a long response.

    Both prompts end in the same token, so later differences come from the context.
    """
    config = causal.config.get_text_config()
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(config.vocab_size, (count,), generator=generator).tolist()

    context = getattr(config, "max_position_embeddings", None) or LONG
    # The smallest contexts hold three tokens of a prompt and three of a response.
    size = max(1, min(5, (context - 1) // 2))
    prompt, response = tokens(size), tokens(max(1, size - 2))
    first = Encoded((*prompt, *tokens(size + 1)), size)
    second = Encoded((*prompt, *response), size)
    short = max(1, size - 2)
    third = Encoded((*tokens(short - 1), prompt[-1], *response), short)
    long = Encoded((*prompt, *tokens(max(1, min(LONG, context - size)))), size)
    return [first, second, third], long


def _plain_logps(
    causal: nn.Module, sequence: Encoded, device: torch.device
) -> Float[Tensor, " tokens"]:
    ids = torch.tensor([sequence.ids], device=device)
    logits = plain_logits(causal, ids)[0, sequence.prompt_length - 1 : -1]
    return _logps(logits, ids[0, sequence.prompt_length :])


def _logps(
    logits: Float[Tensor, "tokens vocabulary"], token: Int[Tensor, " tokens"]
) -> Float[Tensor, " tokens"]:
    return logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)


def _alone(
    causal: nn.Module, sequence: Encoded, truth: Float[Tensor, " tokens"], device: torch.device
) -> float:
    """The sequence without its end: a token must not depend on what follows."""
    length = max(1, sequence.response_length - 2)
    cut = Encoded(sequence.ids[: sequence.prompt_length + length], sequence.prompt_length)
    return _error(causal, collate([cut], 0), [0], [truth[:length]], device)


def _error(
    causal: nn.Module,
    batch: TokenBatch,
    members: list[int] | list[int | None],
    truth: list[Float[Tensor, " _"]],
    device: torch.device,
) -> float:
    """Of a batch's log-probabilities and `truth`; its sequence n is number `members[n]` there."""
    batch = batch.to(device)
    logps = _logps(logits_of(causal, response_hidden(causal, batch)), batch.token)
    differences = []
    for part, number in zip(logps.split(batch.sequence_length.tolist()), members, strict=True):
        if number is not None:
            differences.append(_difference(part, truth[number]))
    return _largest(differences)


def _difference(
    logps: Float[Tensor, " tokens"], truth: Float[Tensor, " tokens"]
) -> Float[Tensor, " tokens"]:
    """The layout's minus the model's own; a NaN in both counts as no difference."""
    return (logps - truth).masked_fill(logps.isnan() & truth.isnan(), 0)


def _largest(differences: list[Float[Tensor, " _"]]) -> float:
    largest = float(torch.cat(differences).abs().max())
    return largest if math.isfinite(largest) else math.inf


def _attention(causal: Any) -> str:
    return str(getattr(causal.config, "_attn_implementation", None))
