"""Faults that are put in on purpose: the callback says what its accounts do not hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger_reader import read_ledger
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


def changes_batches(trainer: Trainer, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The trainer changes a batch after its collator, on its way to the model."""
    compute: Any = trainer.compute_loss

    def changed(model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        return compute(model, change(inputs), *arguments, **named)

    trainer.compute_loss = changed  # type: ignore[method-assign]


def with_a_gap(batch: dict[str, Any]) -> dict[str, Any]:
    labels = batch["labels"].clone()
    labels[:, 3:5] = -100
    return {**batch, "labels": labels}


def drawn_again(batch: dict[str, Any]) -> dict[str, Any]:
    ids = batch["input_ids"].clone()
    ids[:, 1] = torch.randint(5, 10, (len(ids),))
    return {**batch, "input_ids": ids}


FAULTS: dict[str, tuple[Callable[[Trainer], None], TrainerCallback | None, str]] = {
    "other forward": (hooked, None, "hook"),
    "moved early": (lambda trainer: None, Mover(), "moved between"),
    "not covered": (frees, Freer(), "does not cover"),
    "other gradient": (lambda trainer: None, Halver(), "gradient that no sequence makes"),
    "a mask with a gap": (partial(changes_batches, change=with_a_gap), None, "leaves out"),
    "drawn again": (partial(changes_batches, change=drawn_again), None, "changes tokens"),
    "other step": (lambda trainer: None, LateMover(), "formula"),
}


def said_of(fault: str, folder: Path) -> tuple[tuple[str, ...], str]:
    """What the accounts of a training with a fault say they do not hold, and their page."""
    change, callback, _ = FAULTS.get(fault, (lambda trainer: None, None, ""))
    trainer = plain(folder, optim="sgd", learning_rate=0.05)
    change(trainer)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.add_callback(forces := ForceCallback(trainer, every=2))
    trainer.train()
    assert not forces.off, forces.off
    checks = read_ledger(forces.folder, forces.folder).summary.checks
    return checks, (forces.folder / "ledger.html").read_text()


def caught(folder: Path) -> float:
    """The share of the faults that accounts say; 0 if they say one where there is none."""
    said = [FAULTS[fault][2] in " ".join(said_of(fault, folder / fault)[0]) for fault in FAULTS]
    return 0.0 if said_of("none", folder / "none")[0] else sum(said) / len(said)


@pytest.mark.parametrize("fault", [*FAULTS, "none"])
def test_what_an_account_does_not_hold_is_said(fault: str, tmp_path: Path) -> None:
    checks, page = said_of(fault, tmp_path)
    if fault == "none":
        assert checks == ()
    else:
        assert FAULTS[fault][2] in " ".join(checks)
        assert "Not in these accounts" in page
