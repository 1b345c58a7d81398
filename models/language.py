"""Causal language models and their tokenizers, from a local folder or by Hub name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import AddedToken
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

from dynolab.costs.shape import context_of
from dynolab.errors import ConfigError, reading
from dynolab.training.adapters import merge_adapters
from dynolab.training.shards import FILE_BYTES
from models.folder import (
    adapter_base,
    check_counts,
    check_settings,
    check_size,
    check_source,
    loaded_files,
    weight_sizes,
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
    """Loads a causal language model in eval mode, from safetensors only.

    Never runs the source's own code. The source must hold every weight of the model, and no other.

    **Arguments:**

    - `source`: a folder that `save_pretrained` wrote, or a Hub name. For a folder of adapters, the
      model is their base with the adapters merged into its weights.
    - `attention`: `sdpa` or `eager`, whatever the source's configuration says. A model that
      transformers has no sdpa for (Gemma 2, Bloom, Mamba) is loaded with `eager`, with a warning.
    - `revision`: commit of a Hub name, see `dynolab.hub.resolve_commit`.
    - `tokenizer`: checked against the model's vocabulary, if given.
    - `device`: device of the weights.

    **Raises:** `ConfigError` for an unknown folder, a folder without weights or configuration, one
    that holds ranks' shards, or refers to files outside it; for adapters without their base; for
    weights that are missing, unexpected, of another shape, damaged or quantised; for a model that
    is not causal; and for a tokenizer with ids that the model does not have.
    """
    if (base := adapter_base(source)) is not None:
        loaded_files(Path(source))
        base_model = load_language_model(base[0], dtype, attention, revision=base[1])
        merged = merge_adapters(base_model, Path(source))
        if tokenizer is not None:
            check_vocabulary(merged, tokenizer)
        torch.nn.Module.to(merged, device)
        return merged
    check_source(source, "config.json", "model configuration")
    folder, commit = Path(source), revision or "main"
    is_folder = folder.is_dir()
    sizes = None
    if is_folder:
        loaded_files(folder)
        sizes = weight_sizes(folder)
    with reading("model", str(source), _REMEDY):
        if not is_folder and find_adapter_config_file(str(source), revision=commit):
            raise ConfigError(
                "model", str(source), "holds adapters; download it, and give the folder"
            )
        settings, _ = PreTrainedConfig.get_config_dict(str(source), revision=commit)
        check_settings(source, settings)
        if sizes is not None:
            check_counts(folder, settings, sizes)
        config = AutoConfig.from_pretrained(str(source), revision=commit, trust_remote_code=False)
        attention = supported_attention(config, attention)
        config._attn_implementation = attention
        _reset_output_options(config)
        if sizes is not None:
            with torch.device("meta"):
                check_size(folder, AutoModelForCausalLM.from_config(config), sum(sizes))
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
                ignore_mismatched_sizes=True,  # _check_complete reports them by name
                output_loading_info=True,
            ),
        )
    if type(config.get_text_config()) is type(model.config) is not type(config):
        # The text model of a multimodal checkpoint, which has the weights of other parts as well.
        report["unexpected_keys"] = set()
    _check_complete(source, report)
    _check_causal(source, model)
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    torch.nn.Module.to(model, device)
    return model.eval()


def supported_attention(config: PreTrainedConfig, attention: str) -> str:
    """`attention`, or `eager` if transformers has no sdpa for the model."""
    model = cast(
        "type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    )
    if attention != "sdpa" or model is None or model._supports_sdpa:
        return attention
    warnings.warn(
        f"{model.__name__} has no sdpa attention in transformers; loaded with eager", stacklevel=3
    )
    return "eager"


def _reset_output_options(config: PreTrainedConfig) -> None:
    """Resets options that change what a forward returns: only its caller may set them."""
    for part in (config, config.get_text_config()):
        part.return_dict = True
        part.output_hidden_states = part.output_attentions = False
        if hasattr(part, "output_router_logits"):
            part.output_router_logits = False
        if (getattr(part, "pad_token_id", None) or 0) < 0:  # torch would count it from the last row
            part.pad_token_id = None


_REMEDY = "give a causal language model that transformers supports, saved with save_pretrained"


def _check_complete(source: str | Path, report: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for weights that transformers initialised at random or did not load."""
    shapes = {
        f"{name} ({list(shape)}, not {list(expected)})"
        for name, shape, expected in report["mismatched_keys"]
    }
    for problem, names in (
        ("lacks", report["missing_keys"]),
        ("has the wrong shape for", shapes),
        ("has weights that its config.json does not:", report["unexpected_keys"]),
    ):
        if names:
            listed = ", ".join(sorted(names)[:_MOST_NAMED])
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            raise ConfigError(
                "model",
                str(source),
                f"the checkpoint {problem} {listed}{more}; give the whole model with its own "
                "config.json, as save_pretrained writes them",
            )


_MOST_NAMED = 5


def _check_causal(source: str | Path, model: PreTrainedModel) -> None:
    """Raises `ConfigError` for attention that is not causal (`is_causal`, `is_decoder`)."""
    with reading("model", str(source), _REMEDY), torch.no_grad():
        rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
        ids = torch.arange(_TOKENS).expand(2, -1).clone() % rows
        ids[1, -1] = (ids[1, -1] + 1) % rows
        first, second = model.eval()(input_ids=ids).logits[:, :-1].float()
        error = float((first - second).abs().max() / first.std().clamp_min(1e-6))
    if error > _TOLERANCE:
        raise ConfigError(
            "model",
            str(source),
            "its tokens attend to later ones; give a causal model (config.json: is_causal, "
            "is_decoder)",
        )


_TOKENS, _TOLERANCE = 8, 0.05
"""Tokens of the check, and the rounding error allowed in logits, in standard deviations."""


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name; padding falls back to its end-of-sequence token.

    Uses `tokenizer.json`. The model families' own classes, which AutoTokenizer takes, rebuild it
    from vocabulary and merges and lose the rest: a rebuilt Llama tokenizer without byte tokens
    silently leaves unknown characters out of the text.

    As in these classes, a special token stands for itself wherever it is written. Some files say
    that its text is normalised first: then one that follows a word without a space is read as a
    text of several tokens, the end of every answer too.
    """
    if not (Path(source) / "tokenizer.json").is_file() and (base := adapter_base(source)):
        return load_tokenizer(base[0], revision=base[1])
    check_source(source, "tokenizer.json", "tokenizer")
    with reading("model.tokenizer", str(source), "give the tokenizer that belongs to the model"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(source), revision=revision or "main", trust_remote_code=False
        )
        tokenizer.add_tokens(
            [
                AddedToken(token.content, special=True, normalized=False)
                for token in tokenizer.added_tokens_decoder.values()
                if token.special and token.normalized
            ],
            special_tokens=True,
        )
        ids = len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id
    if not all(isinstance(number, int | None) for number in ids):
        raise ConfigError(
            "model.tokenizer",
            str(source),
            "special token ids must be integers; fix tokenizer_config.json",
        )
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises `ConfigError` for a tokenizer that can produce ids beyond the model's embedding."""
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise ConfigError(
            "model.tokenizer",
            f"{len(tokenizer)} tokens",
            f"the model's embedding has {rows} rows; use the tokenizer that belongs to the model",
        )


def context_length(model: PreTrainedModel) -> int:
    """The model's context length, in tokens."""
    length = context_of(model.config.get_text_config())
    if length < 1:
        raise ConfigError(
            "max_length", length, "must be at least 1; fix max_position_embeddings in config.json"
        )
    return length


def folder_context(folder: Path) -> int:
    """Context length of the model in a folder, from its config.json alone, in tokens.

    That of adapters is their base model's.
    """
    source, revision = adapter_base(folder) or (str(folder), None)
    with reading("model", str(folder), _REMEDY):
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        return context_of(config.get_text_config())


def save_language_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path
) -> None:
    """Writes model and tokenizer into one folder that `from_pretrained` loads."""
    model.save_pretrained(folder, max_shard_size=FILE_BYTES)
    tokenizer.save_pretrained(folder)
