"""Models of folders and of trainings' results, their encoders, and their policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.data.encode import Encoder, Overlong
from dynolab.distributed import device

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dynolab.forces import PolicyFunction
    from tasks.runtime.work import Work

ADAPTER = "adapter"
"""Folder of a training's result that holds its adapters, where it trained those alone."""


def adapter_folder(work: Work[Any], name: str) -> Path | None:
    """The adapters of an input that is a training of those alone."""
    return work.input_folder(name, ADAPTER) if work.input_holds(name, ADAPTER) else None


def load_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The language model of a folder, on this process' device, and its tokenizer."""
    from models.language import load_language_model, load_tokenizer

    tokenizer = load_tokenizer(folder)
    return load_language_model(folder, tokenizer=tokenizer, device=device()), tokenizer


def load_encoder(folder: Path, overlong: Overlong = "drop") -> Encoder:
    """The encoder of a folder's model, without the model: its tokenizer and its context."""
    from models.language import folder_context, load_tokenizer

    return Encoder(load_tokenizer(folder), folder_context(folder), overlong)


def load_policy(model: Path, adapter: Path | None = None) -> PolicyFunction:
    """A model on this process' device.

    **Arguments:**

    - `model`: a training's `model/`.
    - `adapter`: its `adapter/`: the policy is then that model taken apart, of which the adapters
      alone move, as in the training's records.
    """
    from dynolab.forces import PolicyFunction
    from dynolab.training.adapters import unmerge_adapters
    from models.language import load_language_model

    loaded = load_language_model(model, device=device())
    return PolicyFunction(loaded if adapter is None else unmerge_adapters(loaded, adapter))
