"""SAM on the output layer in TRL's own trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dynolab
from dynolab.errors import ConfigError
from dynolab.training.sharpness import output_layer
from tests.integrations.test_calibrated import in_peoples_settings
from tests.integrations.test_dose import STEEP
from tests.integrations.test_forces import sft
from tests.integrations.test_trained import dpo

RHO = 0.2


def gradients(trainer: Any, inputs: Any) -> dict[str, torch.Tensor]:
    """What a training step leaves in the weights."""
    trainer.model.zero_grad()
    trainer.training_step(trainer.model, dict(inputs))
    return {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


def test_a_step_has_the_gradient_beside_the_output_layer(tmp_path: Path) -> None:
    trainer: Any = dpo(tmp_path, **STEEP)
    trainer.train()
    inputs = next(iter(trainer.get_train_dataloader()))
    weight = output_layer(trainer.model).weight
    before = weight.detach().clone()
    name = next(n for n, p in trainer.model.named_parameters() if p is weight)
    by_layer = gradients(trainer, inputs)[name]
    with torch.no_grad():
        weight += RHO * by_layer / by_layer.norm()
    expected = gradients(trainer, inputs)
    with torch.no_grad():
        weight.copy_(before)
    sam = dynolab.LogitsSAM(trainer, rho=RHO)
    sam.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer._metrics["train"].clear()
    beside = gradients(trainer, inputs)
    assert not sam.off and torch.equal(weight, before)
    assert {len(values) for values in trainer._metrics["train"].values()} == {1}
    for parameter, gradient in expected.items():
        torch.testing.assert_close(beside[parameter], gradient, rtol=1e-4, atol=1e-6)
    sam.on_train_end(trainer.args, trainer.state, trainer.control)
    assert "training_step" not in vars(trainer)


@in_peoples_settings
def test_it_is_one_line_in_a_script(tmp_path: Path, settings: Any) -> None:
    trainer: Any = dpo(tmp_path, **STEEP | settings)
    trainer.add_callback(sam := dynolab.LogitsSAM(trainer, rho=RHO))
    trainer.train()
    assert not sam.off and "training_step" not in vars(trainer)
    assert sam._layer.weight.requires_grad == ("peft" not in settings)


def test_a_failure_leaves_the_training_as_it_is_without_it(tmp_path: Path) -> None:
    plain: Any = dpo(tmp_path / "plain", **STEEP)
    plain.train()
    trainer: Any = dpo(tmp_path / "failed", **STEEP)
    sam = dynolab.LogitsSAM(trainer, rho=RHO)

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    sam._ascent = broken  # type: ignore[method-assign]
    trainer.add_callback(sam)
    trainer.train()
    assert "ZeroDivisionError" in sam.off
    for one, other in zip(plain.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_it_takes_any_loss_and_a_move_above_0(tmp_path: Path) -> None:
    dynolab.LogitsSAM(sft(tmp_path), rho=RHO)
    with pytest.raises(ConfigError, match="rho"):
        dynolab.LogitsSAM(sft(tmp_path), rho=0)
