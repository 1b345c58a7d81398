"""What is done to a policy before it trains: LoRA, and checkpointed activations."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError, reading, to_install
from dynolab.likelihood.decoder import Reading
from dynolab.likelihood.streamed import keep_frozen_narrow
from dynolab.likelihood.token_logps import ResponseLogits, causal_model
from dynolab.training.config import LoraConfig
from dynolab.training.shards import FILE_BYTES

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_adapters(policy: PreTrainedModel, config: LoraConfig, seed: int) -> PreTrainedModel:
    """Adds trainable adapters to the policy and freezes its weights; B = 0, so nothing changes yet.

    Low-rank ones (LoRA, Hu et al., arXiv 2106.09685), through peft.

    **Arguments:** `seed`: of the random A, so that every rank starts with the same.

    **Raises:** `ConfigError` if peft is missing, and if a target matches no layer.
    """
    peft = _peft()
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        task_type="CAUSAL_LM",
        target_modules="all-linear" if not config.target else list(config.target),
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks for a name that is deprecated
        torch.manual_seed(seed)
        try:
            adapted = peft.get_peft_model(policy, settings)
        except ValueError as error:
            raise ConfigError(
                "lora.target", list(config.target), f"must be layer names of the model: {error}"
            ) from error
    return cast("PreTrainedModel", adapted)


class WithoutAdapters(ResponseLogits):
    """The model with its adapters disabled: a reference that takes no extra memory."""

    def forward(
        self, batch: TokenBatch, read: Reading | None = None
    ) -> Float[Tensor, "tokens ..."]:
        """See `ResponseLogits.forward`; disables the adapters meanwhile."""
        with self.model.disable_adapter():  # type: ignore[operator]
            return super().forward(batch, read)


def unmerge_adapters(merged: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Undoes `save_merged`: returns the merged model with its adapters separate again.

    `W = W_merged − (alpha/rank) B A`, the weights before training up to rounding. If the
    training had them in bf16, they are rounded to it, and are the same to the bit.

    **Arguments:**

    - `merged`: the model saved in `model/`; modified in place.
    - `folder`: the `adapter/` saved beside it.

    **Raises:** `ConfigError` if peft is missing, and if the folder does not hold exactly this
    model's adapters: peft would initialize missing ones at random and ignore extra ones.
    """
    from peft.tuners.lora import LoraLayer

    adapted = _with_adapters(merged, folder, _REMEDY)
    for layer in adapted.modules():
        if isinstance(layer, LoraLayer):
            layer.merged_adapters.extend(layer.active_adapters)  # its weight is merged
            layer.unmerge()
    with safe_open(folder / ADAPTERS, framework="pt") as file:
        if (file.metadata() or {}).get(FROZEN) == str(torch.bfloat16):
            keep_frozen_narrow(adapted)
    return cast("PreTrainedModel", adapted)


def merge_adapters(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The base model with a folder's adapters merged into its weights; modified in place.

    **Arguments:** `folder`: as peft's `save_pretrained` wrote it.

    **Raises:** `ConfigError` if peft is missing, and if the adapters do not fit the model or are
    of a kind that has no weights to merge.
    """
    peft = _peft()
    remedy = "give adapters with the base model they were trained on"
    with reading("adapter", str(folder), remedy):
        config = peft.PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning:
        raise ConfigError(
            "adapter",
            str(folder),
            f"{config.peft_type.value} has no weights to merge into the model's; watch its "
            "training by ForceCallback or ProbeCallback",
        )
    merged = _with_adapters(base, folder, remedy).merge_and_unload().eval()
    return cast("PreTrainedModel", merged.requires_grad_(True))  # peft froze the base


def _with_adapters(model: PreTrainedModel, folder: Path, remedy: str) -> Any:
    peft = _peft()
    with reading("adapter", str(folder), remedy):
        adapted = peft.PeftModel.from_pretrained(model, str(folder), is_trainable=True).eval()
        adapter_names = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        stored = load_file(folder / ADAPTERS).keys()
    for problem, names in (
        ("lacks", adapter_names - stored),
        ("has an unexpected", stored - adapter_names),
    ):
        if names:
            raise ConfigError(
                "adapter",
                str(folder),
                f"{problem} {min(names)}; {remedy}",
            )
    return adapted


_REMEDY = "give the adapter/ folder that this model's training wrote"
ADAPTERS = "adapter_model.safetensors"
FROZEN = "frozen"
"""Key of the file's metadata with the dtype of the weights that the adapters were trained on."""


def save_merged(policy: torch.nn.Module, adapters: dict[str, Tensor], folder: Path) -> None:
    """Writes the merged model to `model/` and the adapters to `adapter/`.

    **Arguments:**

    - `policy`: its full weights must be on this process.
    - `adapters`: the adapters' fp32 weights by parameter name.
    """
    import peft

    live: Any = policy
    inner: Any = causal_model(policy)
    # A new model: the engine still holds the live one, whose parameters it has replaced. It has no
    # weights of its own, so that there is one copy of them.
    with torch.device("meta"):
        plain = type(inner)(inner.config)
    fresh = peft.get_peft_model(plain, live.active_peft_config, low_cpu_mem_usage=True)
    frozen = next(str(p.dtype) for p in policy.parameters() if not p.requires_grad)
    weights = {
        name: weight.detach().to("cpu", torch.float32, copy=True)
        for name, weight in policy.named_parameters()
    }
    fresh.load_state_dict(weights | adapters, assign=True)
    causal: Any = causal_model(fresh)
    causal.tie_weights()
    _save_adapter(fresh, folder / "adapter", frozen)
    fresh.merge_and_unload().save_pretrained(folder / "model", max_shard_size=FILE_BYTES)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError("lora", "peft", f"is not installed; {to_install('train')}") from error
    return peft


def _save_adapter(adapted: Any, folder: Path, frozen: str) -> None:
    """Saves as peft does, but with the same bytes on every machine: no paths, names sorted."""
    import peft

    settings = copy.copy(adapted.active_peft_config)
    settings.base_model_name_or_path = None
    settings.target_modules = sorted(settings.target_modules)
    settings.save_pretrained(str(folder))
    weights = peft.get_peft_model_state_dict(adapted, save_embedding_layers=False)
    named = {name: w.contiguous() for name, w in weights.items()}
    save_file(named, folder / ADAPTERS, {FROZEN: frozen})


FIELD = "engine.checkpoint_activations"


def prepare_checkpointing(model: nn.Module) -> None:
    """Lets `activations_checkpointed` find the layers of a transformers model.

    **Raises:** `ConfigError` for a model whose layers transformers cannot checkpoint, or drop out
    activations themselves: they only run again while they count as training.
    """
    from transformers import PreTrainedModel
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ConfigError(
            FIELD, True, f"{type(model).__name__} has no layers that transformers can checkpoint"
        )
    for layer in layers:
        for name, value in vars(layer).items():
            if "drop" in name and isinstance(value, float) and value > 0:
                raise ConfigError(
                    FIELD,
                    True,
                    f"{type(layer).__name__} would drop out activations with {name} = {value}; "
                    "set it to 0 in the model's config.json",
                )
    assert isinstance(model, PreTrainedModel), "transformers builds its layers into its own models"
    model.activation_checkpointing_enable({"use_reentrant": False})


@contextmanager
def activations_checkpointed(model: nn.Module) -> Iterator[None]:
    """While open, prepared layers keep their inputs alone for the backward pass.

    Only the layers themselves count as training, not what is in them, so that nothing else about
    the forward changes: policies run without dropout.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [
        module
        for module in model.modules()
        if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing
    ]
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode
