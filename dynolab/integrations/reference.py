"""The reference of a trainer's model: what a KL is measured from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.measured import vocabulary_logps
from dynolab.integrations.sharded import is_whole
from dynolab.integrations.trained import unwrapped

if TYPE_CHECKING:
    from transformers import Trainer


def reference_logps(
    trainer: Trainer, answers: Sequence[Encoded]
) -> list[Float[Tensor, "tokens vocabulary"]]:
    """log π_ref at every token of some answers, on the host.

    The reference is the trainer's own, else the model without its adapters, else the model as it
    is now: before its training, even one that is then resumed.

    **Raises:** `ConfigError` where weights are split over ranks.
    """
    reference: Any = getattr(trainer, "ref_model", None)
    if reference is not None:
        reference = trainer.accelerator.unwrap_model(reference, keep_torch_compile=False)
    model: Any = unwrapped(trainer) if reference is None else reference
    if not is_whole(model):
        raise ConfigError(
            "kinds", "kl", "its reference needs whole weights; train with DDP or ZeRO-1 or 2"
        )
    has_adapters = reference is None and hasattr(model, "disable_adapter")
    policy = PolicyFunction(model, derivatives=False)
    with model.disable_adapter() if has_adapters else nullcontext():
        return vocabulary_logps(policy, answers)
