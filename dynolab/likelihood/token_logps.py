"""Per-token log-probabilities of responses, with the output head only at response tokens."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.packing import PackedBatch
from dynolab.errors import ConfigError
from dynolab.likelihood.decoder import Reading, count_parts, logits_of, read_parts
from dynolab.likelihood.layouts import layouts_of, response_hidden


def causal_model(model: nn.Module) -> nn.Module:
    """The causal language model inside peft's wrapper; any other model is returned as it is.

    **Raises:** `ConfigError` for prompt tuning, whose wrapper adds tokens that its model lacks.
    """
    inside = getattr(model, "get_base_model", None)
    if inside is None:
        return model
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ConfigError(
            "model",
            type(config).__name__,
            "virtual prompt tokens cannot be part of a batch; use adapters in the layers (LoRA)",
        )
    return inside()


class ResponseLogits(nn.Module):
    """A causal language model as a function from a batch to its response logits.

    The decoder runs over all positions; the head, whose full output would be batch × length ×
    vocabulary, runs only on the positions that predict a response token. The logits are those of
    the model's own forward (`logits_of`), float32 unless its weights are float64. The model may
    hold adapters (peft).

    **Raises:** `ConfigError` for a model whose log-probabilities differ from its own forward's
    (`layouts_of`, measured on first use).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        layouts_of(causal_model(model))

    def forward(
        self, batch: TokenBatch, read: Reading | None = None
    ) -> Float[Tensor, "tokens ..."]:
        """Logits `[tokens, vocabulary]` that predict each response token, or `read` of them.

        **Arguments:**

        - `batch`: its rows may share prompts (`share_prompts`).
        - `read`: a function of the logits, such as `token_logps`. Only a part of the logits is
          then held at a time, in the backward pass too.
        """
        hidden = self.hidden(batch)
        if read is None:
            return self.head(hidden)
        parts = count_parts(causal_model(self.model), hidden)
        return read_parts(self.head, hidden, batch, read, parts)

    def hidden(self, batch: TokenBatch) -> Float[Tensor, "tokens features"]:
        """Last hidden states, the head's input, from which each response token is predicted."""
        causal = causal_model(self.model)
        if isinstance(batch, PackedBatch) and not layouts_of(causal).agrees("packed"):
            raise ConfigError(
                "batch",
                "packed rows",
                f"{type(causal).__name__} does not support them: "
                f"{layouts_of(causal).difference('packed')}; use rows of one sequence each",
            )
        return response_hidden(causal, batch)

    def head(self, hidden: Float[Tensor, "tokens features"]) -> Float[Tensor, "tokens vocabulary"]:
        """Logits of hidden states: the model's head, and all its own forward applies after it."""
        return logits_of(causal_model(self.model), hidden)


def packing_width(logits: nn.Module) -> int | None:
    """Hidden size of a model that reads packed rows correctly, for `plan_rows`; else None.

    **Arguments:**

    - `logits`: a `ResponseLogits`, or an engine's wrapper of one.
    """
    causal: Any = causal_model(logits.model)  # type: ignore[arg-type]
    agrees = layouts_of(causal).agrees("packed")
    return int(causal.config.get_text_config().hidden_size) if agrees else None


def token_logps(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, " tokens"]:
    """`log π(y_l | x, y_<l)` of every response token at the batch's temperature, in nats."""
    return log_softmax_at(logits, batch).gather(-1, batch.token[:, None]).squeeze(-1)


def target_logps(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens targets"]:
    """`log π` of every response token and, beside it, of its position's `batch.top` tokens."""
    return log_softmax_at(logits, batch).gather(-1, batch.targets)


def top_tokens(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch, ranks: int
) -> TopTokens:
    """Every position's `ranks` likeliest tokens and its entropy, at the batch's temperature."""
    logps = log_softmax_at(logits, batch)
    best = logps.topk(ranks, dim=-1)
    # An impossible token adds nothing to the entropy: 0 · −inf counts as 0.
    entropy = -(logps.exp() * logps.clamp_min(torch.finfo(logps.dtype).min)).sum(-1)
    return TopTokens(best.indices, best.values, entropy)


def log_softmax_at(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens vocabulary"]:
    """`log π` of the whole vocabulary at every response token, at the batch's temperature."""
    scaled = logits if batch.temperature == 1 else logits / batch.temperature
    return torch.log_softmax(scaled, dim=-1)
