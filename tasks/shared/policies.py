"""Loads models, encoders and policies from model folders and trainings' results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dynolab.data.encode import Encoder, Overlong
from dynolab.distributed import device
from dynolab.forces import PolicyFunction
from dynolab.likelihood.streamed import stream
from dynolab.rollouts.decoding import sample_responses
from dynolab.training.adapters import unmerge_adapters

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from dynolab.data.rows import Example, ProbeRow, PromptRow
    from dynolab.rollouts.generator import SampleConfig, Sampled
    from tasks.runtime.work import Work

ROOM = 0.8
"""Part of a GPU's free memory that copies of weights may take; the rest is for activations."""

ADAPTER = "adapter"
"""Folder of a training's result that holds its adapters, if it trained adapters only."""


def adapter_folder(work: Work[Any], name: str) -> Path | None:
    """The adapter folder of an input; None unless it is a training of adapters."""
    return work.input_folder(name, ADAPTER) if work.input_holds(name, ADAPTER) else None


def load_model(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The language model of a folder, to score and to sample, and its tokenizer.

    It is on this process's device, or in main memory where a GPU has no room for it: its weights
    then come to the GPU module by module.
    """

    from models.language import load_language_model, load_tokenizer

    tokenizer, here = load_tokenizer(folder), device()
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    waits = here.type != "cpu" and size > ROOM * torch.cuda.mem_get_info(here)[0]
    model = load_language_model(folder, tokenizer=tokenizer, device="cpu" if waits else here)
    if waits:
        stream(model, here)
    return model, tokenizer


def responses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Example | ProbeRow | PromptRow],
    config: SampleConfig,
) -> list[Sampled]:
    """One sampled response to the prompt of each row, in order."""

    prompts, turns = [row.prompt for row in rows], [row.turn for row in rows]
    return sample_responses(model, tokenizer, prompts, config, turns)


def load_encoder(folder: Path, overlong: Overlong = "drop") -> Encoder:
    """The encoder for a folder's model, from its tokenizer and context length alone."""
    from models.language import folder_context, load_tokenizer

    return Encoder(load_tokenizer(folder), folder_context(folder), overlong)


def load_policy(
    model: Path, adapter: Path | None = None, *, copies: int | None = None
) -> PolicyFunction:
    """A training's model as a policy, on this process's device.

    **Arguments:**

    - `model`: the training's `model/`.
    - `adapter`: its `adapter/`. The adapters are then split from the merged weights, and only they
      are parameters, as in the training's records.
    - `copies`: of what moves, that an analysis holds on a GPU. Where that has no room for them, all
      stay in main memory, and weights come to the GPU module by module. By default the model is on
      the GPU in any case.
    """

    from dynolab.costs.memory import FP32
    from models.language import load_language_model

    loaded = load_language_model(model)
    policy: nn.Module = loaded if adapter is None else unmerge_adapters(loaded, adapter)
    here, parameters = device(), list(policy.parameters())
    if here.type == "cpu" or copies is None:
        return PolicyFunction(policy.to(here))
    moving = sum(weight.numel() for weight in parameters if weight.requires_grad)
    frozen = sum(weight.nbytes for weight in parameters if not weight.requires_grad)
    needed = frozen + copies * FP32 * moving
    if needed <= ROOM * torch.cuda.mem_get_info(here)[0]:
        return PolicyFunction(policy.to(here))
    return PolicyFunction(policy, device=here)
