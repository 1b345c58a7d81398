"""The policy of a model or of a training's result, as a function of the weights that moved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynolab.forces import PolicyFunction
    from tasks.runtime.work import Work

ADAPTER = "adapter"
"""Folder of a training's result that holds its adapters, where it trained those alone."""


def adapter_folder(work: Work[Any], name: str) -> Path | None:
    """The adapters of an input that is a training of those alone."""
    return work.input_folder(name, ADAPTER) if work.input_holds(name, ADAPTER) else None


def load_policy(model: Path, adapter: Path | None = None) -> PolicyFunction:
    """A model on this process' device.

    **Arguments:**

    - `model`: a training's `model/`.
    - `adapter`: its `adapter/`: the policy is then that model taken apart, of which the adapters
      alone move, as in the training's records.
    """
    from dynolab.distributed import device
    from dynolab.forces import PolicyFunction
    from dynolab.training.adapters import take_apart
    from models.language import load_language_model

    loaded = load_language_model(model, device=device())
    return PolicyFunction(loaded if adapter is None else take_apart(loaded, adapter))
