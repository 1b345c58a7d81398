"""Low-rank adapters (LoRA, Hu et al., arXiv 2106.09685) through peft."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError, reading
from dynolab.likelihood.packed import Reading
from dynolab.likelihood.token_logps import ResponseLogits, causal_model
from dynolab.training.config import LoraConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_adapters(policy: PreTrainedModel, config: LoraConfig, seed: int) -> PreTrainedModel:
    """The policy with adapters that alone are trained; at first they change nothing.

    **Arguments:** `seed`: of their random half, so that every rank begins with the same.

    **Raises:** `ConfigError` where peft is missing, and where no layer has a target's name.
    """
    peft = _peft()
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        task_type="CAUSAL_LM",
        target_modules="all-linear" if not config.target else list(config.target),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(policy, settings)
        except ValueError as error:
            raise ConfigError(
                "lora.target", list(config.target), f"name layers of the model: {error}"
            ) from error
    return cast("PreTrainedModel", adapted)


class WithoutAdapters(ResponseLogits):
    """The model as it was before its adapters: the reference, at no memory of its own."""

    def forward(
        self, batch: TokenBatch, read: Reading | None = None
    ) -> Float[Tensor, "tokens ..."]:
        """As `ResponseLogits.forward`, the adapters switched off."""
        with self.model.disable_adapter():  # type: ignore[operator]
            return super().forward(batch, read)


def take_apart(merged: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The adapted policy of a finished training: what `save_merged` wrote, taken apart again.

    `W = W_merged − (alpha/rank) B A`, the weights before training but for the rounding of the sum.

    **Arguments:**

    - `merged`: the model of its `model/`; it becomes a part of the result.
    - `folder`: its `adapter/`.

    **Raises:** `ConfigError` where peft is missing, and for a folder that does not hold exactly the
    adapters of this model: peft draws at random what it lacks, and leaves out what is left over.
    """
    peft = _peft()
    from peft.tuners.lora import LoraLayer

    with reading("adapter", str(folder), _REMEDY):
        adapted = peft.PeftModel.from_pretrained(merged, str(folder), is_trainable=True).eval()
        wanted = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        there = load_file(folder / ADAPTERS).keys()
    for what, names in (("lacks", wanted - there), ("holds, beyond them,", there - wanted)):
        if names:
            raise ConfigError(
                "adapter",
                str(folder),
                f"of the adapters that it is set for it {what} {min(names)}; {_REMEDY}",
            )
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            layer.merged_adapters.extend(layer.active_adapters)  # as its weight is
            layer.unmerge()
    return cast("PreTrainedModel", adapted)


_REMEDY = "give the folder that the training of these adapters wrote"
ADAPTERS = "adapter_model.safetensors"


def save_merged(policy: torch.nn.Module, adapters: dict[str, Tensor], folder: Path) -> None:
    """Writes a plain model into `model/`, adapters added to its weights, and `adapter/` beside it.

    **Arguments:**

    - `policy`: with its weights whole on this process.
    - `adapters`: the adapters' fp32 weights by parameter name.
    """
    import peft

    live: Any = policy
    inner: Any = causal_model(policy)
    # A model of its own: the engine goes on holding the live one, whose parameters it has changed.
    fresh = peft.get_peft_model(type(inner)(inner.config), live.active_peft_config)
    weights = {name: p.detach().to("cpu", torch.float32) for name, p in policy.named_parameters()}
    unknown = fresh.load_state_dict(weights | adapters, strict=False).unexpected_keys
    assert not unknown, unknown
    _save_adapter(fresh, folder / "adapter")
    fresh.merge_and_unload().save_pretrained(folder / "model")


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("lora", "peft", "is not installed; pip install dynolab[train]") from error
    return peft


def _save_adapter(adapted: Any, folder: Path) -> None:
    """As peft writes it, but the same bytes on every machine: no paths, names in order."""
    import peft

    settings = copy.copy(adapted.active_peft_config)
    settings.base_model_name_or_path = None
    settings.target_modules = sorted(settings.target_modules)
    settings.save_pretrained(str(folder))
    weights = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / ADAPTERS)
