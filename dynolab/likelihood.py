"""Per-token log-probabilities of responses, with the output head only where a response stands."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch, TopTokens
from dynolab.data.prefixes import PrefixBatch
from dynolab.errors import ConfigError
from dynolab.packed import Reading, attention_mask, count_parts, read_parts, shares_prompts
from dynolab.prefixed import prefixed_hidden


def causal_model(model: nn.Module) -> nn.Module:
    """The causal language model inside peft's wrapper; another model is its own.

    **Raises:** `ConfigError` for prompt tuning, whose wrapper adds tokens that its model lacks.
    """
    inside = getattr(model, "get_base_model", None)
    if inside is None:
        return model
    config = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise ConfigError(
            "model", type(config).__name__,
            "virtual prompt tokens have no place in a batch; use adapters in the layers (LoRA)",
        )  # fmt: skip
    return inside()


class ResponseLogits(nn.Module):
    """A causal language model seen as a function from a batch to its response logits.

    The transformer runs over all positions; the head, whose output is batch × length × vocabulary
    where it is not restrained, runs only on the positions that predict a response token. The
    logits are float32 whatever the weights are. The model may hold adapters (peft).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        causal_model(model)

    def forward(self, batch: TokenBatch, read: Reading | None = None) -> Tensor:
        """Logits `[tokens, vocabulary]` that predict each response token, or what is read of them.

        **Arguments:**

        - `batch`: its rows may share prompts (`share_prompts`, `collate_prefixes`).
        - `read`: what is wanted of the logits, say `token_logps`. Few of them then exist at a
          time, in the backward pass too.
        """
        hidden = self.hidden(batch)
        if read is None:
            return self.head(hidden)
        parts = count_parts(causal_model(self.model), hidden)
        return read_parts(self.head, hidden, batch, read, parts)

    def hidden(self, batch: TokenBatch) -> Float[Tensor, "tokens features"]:
        """Last hidden states, the head's input, from which each response token is predicted."""
        causal = causal_model(self.model)
        if isinstance(batch, PrefixBatch):
            return prefixed_hidden(causal.base_model, batch)
        hidden = causal.base_model(  # type: ignore[operator]
            input_ids=batch.input_ids,
            attention_mask=attention_mask(causal, batch),
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state
        return hidden[batch.token_row, batch.position]

    def head(self, hidden: Float[Tensor, "tokens features"]) -> Float[Tensor, "tokens vocabulary"]:
        """Logits of hidden states."""
        logits = causal_model(self.model).get_output_embeddings()(hidden)  # type: ignore[operator]
        return logits if logits.dtype == torch.float64 else logits.float()


def packing_width(logits: nn.Module) -> int | None:
    """Hidden size of a model that can see packed rows, for `plan_rows`; None of others.

    **Arguments:**

    - `logits`: a `ResponseLogits`, or what an engine wrapped around one.
    """
    causal: Any = causal_model(logits.model)  # type: ignore[arg-type]
    return int(causal.config.hidden_size) if shares_prompts(causal) else None


def token_logps(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, tokens]:
    """`log π(y_l | x, y_<l)` of every response token at the batch's temperature, in nats."""
    return _log_softmax(logits, batch).gather(-1, batch.token[:, None]).squeeze(-1)


def target_logps(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens targets"]:
    """`log π` of every response token and, beside it, of its position's `batch.top` tokens."""
    return _log_softmax(logits, batch).gather(-1, batch.targets)


def top_tokens(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch, ranks: int
) -> TopTokens:
    """Every position's `ranks` likeliest tokens and its entropy, at the batch's temperature."""
    logps = _log_softmax(logits, batch)
    best = logps.topk(ranks, dim=-1)
    # An impossible token has no share in the entropy: 0 · −inf is none.
    entropy = -(logps.exp() * logps.clamp_min(torch.finfo(logps.dtype).min)).sum(-1)
    return TopTokens(best.indices, best.values, entropy)


def _log_softmax(
    logits: Float[Tensor, "tokens vocabulary"], batch: TokenBatch
) -> Float[Tensor, "tokens vocabulary"]:
    scaled = logits if batch.temperature == 1 else logits / batch.temperature
    return torch.log_softmax(scaled, dim=-1)
