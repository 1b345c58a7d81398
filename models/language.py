"""Causal language models and their tokenizers, from a local folder or by Hub name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import find_adapter_config_file

from dynolab.errors import ConfigError, reading
from models.folder import (
    check_counts,
    check_settings,
    check_size,
    check_source,
    held_weights,
    read_files,
)


def load_language_model(
    source: str | Path,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    *,
    revision: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    device: torch.device | str = "cpu",
) -> PreTrainedModel:
    """A causal language model in eval mode; safetensors only, never with the source's own code.

    What is loaded is what the source holds: every weight of the model, and no other.

    **Arguments:**

    - `source`: a folder that `save_pretrained` wrote, or a Hub name.
    - `attention`: `sdpa` or `eager`, whatever the source's configuration says. A model that
      transformers has no sdpa for (Gemma 2, Bloom, Mamba) is loaded with `eager`, with a warning.
    - `revision`: commit of a Hub name, see `dynolab.hub.resolve_commit`.
    - `tokenizer`: checked against the model's vocabulary where given.
    - `device`: where the weights are put.

    **Raises:** `ConfigError` for an unknown folder, a folder without weights or configuration, one
    that holds the ranks' shards of a model or adapters, or names files elsewhere; for weights that
    are missing, left over, of another shape, damaged or quantised; and for a tokenizer with ids
    that the model lacks.
    """
    check_source(source, "config.json", "model configuration")
    folder, commit = Path(source), revision or "main"
    is_folder = folder.is_dir()
    held = None
    if is_folder:
        read_files(folder)
        held = held_weights(folder)
    with reading("model", str(source), _REMEDY):
        if not is_folder and find_adapter_config_file(str(source), revision=commit):
            raise ConfigError(
                "model", str(source), "holds adapters; merge them, and save the whole"
            )
        settings, _ = PreTrainedConfig.get_config_dict(str(source), revision=commit)
        check_settings(source, settings)
        if held is not None:
            check_counts(folder, settings, held)
        config = AutoConfig.from_pretrained(str(source), revision=commit, trust_remote_code=False)
        attention = _supported_attention(config, attention)
        config._attn_implementation = attention
        _settle_outputs(config)
        if held is not None:
            with torch.device("meta"):
                check_size(folder, AutoModelForCausalLM.from_config(config), held)
        model, report = cast(
            "tuple[PreTrainedModel, dict[str, Any]]",
            AutoModelForCausalLM.from_pretrained(
                str(source),
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                revision=commit,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # reported, and refused with their names
                output_loading_info=True,
            ),
        )
    _check_complete(source, report)
    _check_causal(source, model)
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    torch.nn.Module.to(model, device)
    return model.eval()


def _supported_attention(config: PreTrainedConfig, attention: str) -> str:
    """`attention`, or `eager` where transformers has no sdpa for the model."""
    model = cast(
        "type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    if attention != "sdpa" or model is None or model._supports_sdpa:
        return attention
    warnings.warn(
        f"{model.__name__} has no sdpa attention in transformers; loaded with eager", stacklevel=3
    )
    return "eager"


def _settle_outputs(config: PreTrainedConfig) -> None:
    """What a forward gives is asked for by its caller, whatever the source's settings say."""
    for part in (config, config.get_text_config()):
        part.return_dict = True
        part.output_hidden_states = part.output_attentions = False
        if hasattr(part, "output_router_logits"):
            part.output_router_logits = False
        if part.pad_token_id is not None and part.pad_token_id < 0:  # counts rows from the end
            part.pad_token_id = None


_REMEDY = "give a causal language model that transformers knows, saved whole by save_pretrained"


def _check_complete(source: str | Path, report: Mapping[str, Any]) -> None:
    """Refuses weights that transformers filled in at random or left unread."""
    shapes = {
        f"{name} ({list(there)}, not {list(wanted)})"
        for name, there, wanted in report["mismatched_keys"]
    }
    for what, names in (
        ("lacks", report["missing_keys"]),
        ("has other shapes of", shapes),
        ("holds, beyond the model of its config.json,", report["unexpected_keys"]),
    ):
        if names:
            listed = ", ".join(sorted(names)[:_NAMED])
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise ConfigError(
                "model",
                str(source),
                f"the checkpoint {what} {listed}{more}; give the whole model with its own "
                "config.json, as save_pretrained writes them",
            )


_NAMED = 5


def _check_causal(source: str | Path, model: PreTrainedModel) -> None:
    """Refuses a model that is set to read answers from behind: `is_causal`, Bert's `is_decoder`."""
    with reading("model", str(source), _REMEDY), torch.no_grad():
        rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
        ids = torch.arange(_CHECKED).expand(2, -1).clone() % rows
        ids[1, -1] = (ids[1, -1] + 1) % rows
        first, second = model.eval()(input_ids=ids).logits[:, :-1].float()
        error = float((first - second).abs().max() / first.std().clamp_min(1e-6))
    if error > _CAUSAL:
        raise ConfigError(
            "model",
            str(source),
            "its tokens see those after them; give a causal model (config.json: is_causal, "
            "is_decoder)",
        )


_CHECKED, _CAUSAL = 8, 0.05
"""Tokens that are read, and by how much rounding may move their logits, in their own spread."""


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name; padding falls back to its end-of-sequence token.

    It is `tokenizer.json` as it stands. The model families' own classes, which AutoTokenizer
    takes, rebuild it from vocabulary and merges and lose the rest: rebuilt, a Llama tokenizer
    without byte tokens leaves unknown characters out of the text without a word.
    """
    check_source(source, "tokenizer.json", "tokenizer")
    with reading("model.tokenizer", str(source), "give the tokenizer that belongs to the model"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(source), revision=revision or "main", trust_remote_code=False
        )
        ids = len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id
    if not all(isinstance(number, int | None) for number in ids):
        raise ConfigError("model.tokenizer", str(source), "its special tokens are no tokens")
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer that can produce ids beyond the model's embedding."""
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise ConfigError(
            "model.tokenizer",
            f"{len(tokenizer)} tokens",
            f"the model's embedding has {rows} rows; use the tokenizer that belongs to the model",
        )


def context_length(model: PreTrainedModel) -> int:
    """Longest sequence the model was built for, in tokens."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        raise ConfigError(
            "max_length", None, "the model's configuration names no context; set max_length"
        )
    if length < 1:
        raise ConfigError("max_length", length, "is no context; mend the model's config.json")
    return int(length)


def folder_context(folder: Path) -> int:
    """Context of the model in a folder, from its configuration alone."""
    with reading("model", str(folder), _REMEDY):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
        return int(config.max_position_embeddings)


def save_language_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path
) -> None:
    """Writes model and tokenizer into one folder that `from_pretrained` loads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
