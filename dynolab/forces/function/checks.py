"""Rejects what the force engine cannot use: models, batches and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from dynolab.training.step_record import StepRecord


def check_model(model: nn.Module, *, derivatives: bool = True) -> None:
    """Rejects models whose parameters are not the numbers that they compute with.

    **Arguments:** `derivatives`: their gradients must be derivatives, too.

    **Raises:** `ConfigError` for weights that are offloaded, on several devices or not finite, and
    for adapters that are merged or switched off; where derivatives are wanted, for ZeRO-3
    placeholders, for quantised weights, which have none in forward mode, and for adapters of a kind
    whose gradient autograd does not give.
    """
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0 and derivatives:
            raise ConfigError(
                name,
                "empty, a placeholder of ZeRO-3",
                "analyse the gathered model: the run's `model/` folder, or the engine's "
                "`master_weights()` in a model of one process",
            )
        if not parameter.is_floating_point() and derivatives:
            raise ConfigError(name, str(parameter.dtype), "dequantise the weights first")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise ConfigError("model", devices, "put all weights on one device, none of them offloaded")
    check_finite("weights", {name: p.detach() for name, p in model.named_parameters()})
    for name, module in model.named_modules():
        # peft's layers, recognised by their attributes, so that peft need not be installed.
        if getattr(module, "merged_adapters", None):
            raise ConfigError(
                name,
                f"adapters {module.merged_adapters} are merged",
                "call unmerge_adapter(), or merge_and_unload() to move the merged weights",
            )
        if getattr(module, "_disable_adapters", False):
            raise ConfigError(name, "adapters are switched off", "switch them on, or unload them")
        if derivatives and getattr(module, "lora_variant", None):
            kinds = sorted({type(variant).__name__ for variant in module.lora_variant.values()})
            raise ConfigError(
                name,
                kinds,
                "only plain LoRA has forces: DoRA's gradient holds its norm constant, so it is "
                "no derivative; call merge_and_unload() to move the merged weights",
            )


def check_finite(label: str, tensors: Mapping[str, Shaped[Tensor, " ..."]]) -> None:
    """Rejects tensors with nan or inf."""
    # Sums are cheap and any nan or inf shows in them; they may also overflow on finite entries.
    # They are read all at once: each reading waits for a GPU.
    sums = [tensor.sum().double() for tensor in tensors.values()]
    if not sums or bool(torch.stack(sums).isfinite().all()):
        return
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigError(
                f"{label}[{name}]",
                "nan or inf",
                "training diverged; give a checkpoint from before divergence",
            )


def check_response(label: str, sequence: Encoded, causal: nn.Module) -> None:
    """Rejects a sequence that the model cannot score; the error names it `label`."""
    context = getattr(causal.config, "max_position_embeddings", None)
    vocabulary = causal.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if sequence.response_length < 1:
        raise ConfigError(label, sequence.ids, "has no response tokens; give a response")
    if sequence.prompt_length < 1:
        raise ConfigError(
            label, sequence.ids, "has no prompt token to predict the first one from; give a prompt"
        )
    if context is not None and len(sequence.ids) > context:
        raise ConfigError(
            label, f"{len(sequence.ids)} tokens", f"the context holds {context}; shorten the prompt"
        )
    if not 0 <= min(sequence.ids) <= max(sequence.ids) < vocabulary:
        raise ConfigError(
            label,
            max(sequence.ids),
            f"the model's vocabulary has {vocabulary} tokens; encode with the model's tokenizer",
        )


def check_items(causal: nn.Module, **sides: Sequence[Encoded]) -> None:
    """Rejects empty sides and responses that the model cannot score."""
    for side, items in sides.items():
        if not items:
            raise ConfigError(side, [], "give at least one response")
        for number, item in enumerate(items):
            check_response(f"{side}[{number}]", item, causal)


def check_batch(batch: TokenBatch, causal: nn.Module) -> None:
    """Rejects a batch with a sequence that the model cannot score."""
    first = {row: len(ids) for row, ids in enumerate(batch.input_ids)}
    for row, position in zip(batch.sequence.tolist(), batch.position.tolist(), strict=True):
        first[row] = min(first[row], position + 1)
    real = batch.attention_mask.bool()
    for row, (ids, mask) in enumerate(zip(batch.input_ids, real, strict=True)):
        prompt = int(mask[: first[row]].sum())
        sequence = Encoded(tuple(ids[mask].tolist()), prompt)
        check_response(f"batch sequence {row}", sequence, causal)


def check_record(record: StepRecord, causal: nn.Module) -> None:
    """Rejects a record with responses that the model cannot score, or with nan or inf."""
    for example in record.examples:
        for name, sequence in example.named().items():
            check_response(f"record example {example.id}.{name}", sequence, causal)
    check_finite("record.before", record.before)
    check_finite("record.after", record.after)
    for name, state in record.state.items():
        check_finite(f"record.state[{name}]", state)


def check_arithmetic(dtype: torch.dtype, why: str) -> None:
    """Rejects 16-bit arithmetic, whose rounding hides the result."""
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError("policy.dtype", str(dtype), f"{why}; use float32 or float64")
