"""Pushes that are scaled into each pair's band, in TRL's own trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor

import dynolab
from dynolab.errors import ConfigError
from dynolab.integrations import calibrated
from dynolab.objectives.pairs import band_dose
from tests.integrations.test_dose import STEEP, gradients, weights_after
from tests.integrations.test_forces import sft
from tests.integrations.test_trained import dpo

in_peoples_settings = pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2},
        {"peft": LoraConfig(r=2, target_modules=["q_proj"])},
        {"bf16": True, "gradient_checkpointing": True},
    ],
    ids=lambda settings: "-".join(settings),
)
"""Runs a test under what people set besides the loss."""


def weigh_rows(trainer: Any, factors: Tensor) -> Any:
    """Multiplies the loss's gradient through each row of the outputs."""

    def weigh(module: Any, arguments: Any, output: Any) -> None:
        if torch.is_grad_enabled() and len(output.log_probs) == len(factors):
            output.log_probs.register_hook(lambda gradient: gradient * factors[:, None])

    return trainer.model.register_forward_hook(weigh)


def loss_gradients(trainer: Any, inputs: dict[str, Tensor], factors: Tensor) -> Tensor:
    """The loss's gradient, as one vector, with that through each row multiplied by its factor."""
    handle = weigh_rows(trainer, factors)
    made = gradients(trainer, inputs)
    handle.remove()
    return torch.cat([made[name].flatten() for name in sorted(made)]).double()


@pytest.mark.parametrize("weight", [0.02, 50.0])
def test_pairs_are_scaled_into_their_band(tmp_path: Path, weight: float) -> None:
    """Under a loss that weighs rejected answers too little, and too much."""
    trainer: Any = dpo(tmp_path, **STEEP)
    trainer.train()
    weigh_rows(trainer, torch.tensor([1.0, 1.0, weight, weight]))
    scaled = calibrated.CalibratedDose(trainer)
    dosed, batches = [], list(trainer.get_train_dataloader())
    scaled.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.model.train()
    for inputs in batches:
        scaled.on_step_begin(trainer.args, trainer.state, trainer.control)
        made = gradients(trainer, inputs)
        dosed.append(torch.cat([made[name].flatten() for name in sorted(made)]).double())
    scaled.on_train_end(trainer.args, trainer.state, trainer.control)
    assert not scaled.off
    doses = []
    for inputs, whole in zip(batches, dosed, strict=True):
        rows = len(inputs["input_ids"])
        parts = [loss_gradients(trainer, inputs, row) for row in torch.eye(rows)]
        expected = sum(parts[: rows // 2])
        for up, down in zip(parts[: rows // 2], parts[rows // 2 :], strict=True):
            dose = band_dose(float(up @ up), -float(up @ down), float(down @ down))
            expected = expected + dose * down
            doses.append(dose)
        torch.testing.assert_close(whole, expected, rtol=1e-3, atol=1e-6)
    assert any(dose < 1 for dose in doses) == (weight > 1)
    assert any(dose > 1 for dose in doses) == (weight < 1)


def test_doses_of_one_train_as_without_it_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = weights_after(dpo(tmp_path, **STEEP))
    monkeypatch.setattr(calibrated, "pair_dose", lambda *sides: 1.0)
    trainer = dpo(tmp_path, **STEEP)
    same = weights_after(trainer, calibrated.CalibratedDose(trainer))
    assert all(torch.equal(plain[name], same[name]) for name in plain)


@in_peoples_settings
def test_it_is_one_line_in_a_script(tmp_path: Path, settings: Any) -> None:
    trainer: Any = dpo(tmp_path, **STEEP | settings)
    trainer.add_callback(scaled := dynolab.CalibratedDose(trainer))
    trainer.train()
    assert not scaled.off and not trainer.model._forward_hooks
    lines = [line for line in trainer.state.log_history if "dose/rejected" in line]
    assert len(lines) == 6
    assert all(0 <= line["dose/in_band"] <= 1 for line in lines)


def test_a_trainer_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DPOTrainer"):
        dynolab.CalibratedDose(sft(tmp_path))
