"""Faults that are put in on purpose: the callback says what its accounts do not hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger import read_ledger
from tests.integrations.test_callback import plain


def hooked(trainer: Trainer) -> None:
    """A wrapper's hook gives the model other tokens."""

    def replace(module: Any, arguments: Any, named: dict[str, Any]) -> Any:
        ids = named["input_ids"]
        return arguments, named | {"input_ids": torch.where(ids > 5, ids - 1, ids)}

    trainer.model.register_forward_pre_hook(replace, with_kwargs=True)


class Mover(TrainerCallback):
    """Moves a weight outside the optimizer."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        with torch.no_grad():
            more["model"].get_output_embeddings().weight.mul_(1.01)


class Freer(TrainerCallback):
    """Frees a layer that was frozen when the training began, and trains it."""

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        with torch.no_grad():
            frozen(more["model"]).add_(0.01)


def frozen(model: Any) -> torch.nn.Parameter:
    return next(model.parameters())


def frees(trainer: Trainer) -> None:
    frozen(trainer.model).requires_grad_(False)


class Halver(TrainerCallback):
    """Changes the gradient where the accounts do not see it: a clip factor of its own."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        for parameter in more["model"].parameters():
            parameter.grad.mul_(0.5)


class LateMover(Mover):
    """Moves it while the optimizer's step is made."""

    on_optimizer_step = Mover.on_pre_optimizer_step
    on_pre_optimizer_step = TrainerCallback.on_pre_optimizer_step


FAULTS: dict[str, tuple[Callable[[Trainer], None], TrainerCallback | None, str]] = {
    "other forward": (hooked, None, "hook"),
    "moved early": (lambda trainer: None, Mover(), "moved between"),
    "not covered": (frees, Freer(), "does not cover"),
    "other gradient": (lambda trainer: None, Halver(), "gradient that no sequence makes"),
    "other step": (lambda trainer: None, LateMover(), "formula"),
}


@pytest.mark.parametrize("fault", [*FAULTS, "none"])
def test_what_an_account_does_not_hold_is_said(fault: str, tmp_path: Path) -> None:
    change, callback, words = FAULTS.get(fault, (lambda trainer: None, None, ""))
    trainer = plain(tmp_path, optim="sgd", learning_rate=0.05)
    change(trainer)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.add_callback(forces := ForceCallback(trainer, every=2))
    trainer.train()
    assert not forces.off
    checks = read_ledger(forces.folder, forces.folder).summary.checks
    if fault == "none":
        assert checks == ()
    else:
        assert words in " ".join(checks)
        assert "Not in these accounts" in (forces.folder / "ledger.html").read_text()
