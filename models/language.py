"""Causal language models and their tokenizers, from a local folder or by Hub name."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from dynolab.errors import ConfigError


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

    **Arguments:**

    - `source`: a folder that `save_pretrained` wrote, or a Hub name.
    - `attention`: `sdpa` or `eager`.
    - `revision`: commit of a Hub name, see `dynolab.hub.resolve_commit`.
    - `tokenizer`: checked against the model's vocabulary where given.
    - `device`: where the weights are put.

    **Raises:** `ConfigError` for an unknown folder, a folder without weights or configuration, one
    that holds the ranks' shards of a model, and a tokenizer with ids that the model lacks.
    """
    _check_shards(Path(source))
    _check_folder(source, "config.json", "model configuration")
    if Path(source).is_dir() and not list(Path(source).glob("*.safetensors")):
        raise ConfigError(
            "model", str(source),
            "the folder holds no *.safetensors weights; save the model with save_pretrained",
        )  # fmt: skip
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(source), dtype=dtype, attn_implementation=attention, revision=revision or "main",
            use_safetensors=True, trust_remote_code=False,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise _unloadable("model", source, error) from error
    if tokenizer is not None:
        check_vocabulary(model, tokenizer)
    torch.nn.Module.to(model, device)
    return model.eval()


def load_tokenizer(source: str | Path, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub name; padding falls back to its end-of-sequence token.

    It is `tokenizer.json` as it stands. The model families' own classes, which AutoTokenizer
    takes, rebuild it from vocabulary and merges and lose the rest: rebuilt, a Llama tokenizer
    without byte tokens leaves unknown characters out of the text without a word.
    """
    _check_folder(source, "tokenizer.json", "tokenizer")
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(source), revision=revision or "main", trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise _unloadable("model.tokenizer", source, error) from error
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer that can produce ids beyond the model's embedding."""
    rows = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    if len(tokenizer) > rows:
        raise ConfigError(
            "model.tokenizer", f"{len(tokenizer)} tokens",
            f"the model's embedding has {rows} rows; use the tokenizer that belongs to the model",
        )  # fmt: skip


def context_length(model: PreTrainedModel) -> int:
    """Longest sequence the model was built for, in tokens."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        raise ConfigError(
            "max_length", None, "the model's configuration names no context; set max_length"
        )
    return int(length)


def folder_context(folder: Path) -> int:
    """Context of the model in a folder, from its configuration alone."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config()
    return int(config.max_position_embeddings)


def save_language_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: str | Path
) -> None:
    """Writes model and tokenizer into one folder that `from_pretrained` loads."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_SHARDS = ("global_step*", "zero_pp_rank_*", "*_optim_states.pt", "shard-*.safetensors")
"""What DeepSpeed's ranks and a training's resume states leave in a folder: parts of tensors."""


def _check_shards(folder: Path) -> None:
    shards = sorted(one.name for pattern in _SHARDS for one in folder.glob(pattern))
    if shards and not list(folder.glob("model*.safetensors")):
        raise ConfigError(
            "model", str(folder),
            f"the folder holds ranks' shards ({shards[0]}), no whole weights; give the training's "
            "`model/` folder, or gather the shards (DeepSpeed's zero_to_fp32) and save a model",
        )  # fmt: skip


def _check_folder(source: str | Path, needed: str, what: str) -> None:
    folder = Path(source)
    if folder.is_dir():
        if not (folder / needed).is_file():
            raise ConfigError(
                "model", str(source), f"the folder holds no {what} ({needed}); save it there"
            )
        return
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if looks_local or str(source).count("/") > 1:
        raise ConfigError("model", str(source), "no such folder; give a folder or a Hub name")


def _unloadable(field: str, source: str | Path, error: Exception) -> ConfigError:
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return ConfigError(field, str(source), f"cannot be loaded: {first_line}")
