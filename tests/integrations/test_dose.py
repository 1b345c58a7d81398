"""The dose that forces choose, in TRL's own trainers."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from transformers import Trainer
from trl.experimental.cpo import CPOConfig, CPOTrainer

import dynolab
from dynolab.data.batches import collate
from dynolab.errors import ConfigError
from dynolab.integrations import dose
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from tests.benchmarks.models import build
from tests.integrations.test_callback import SHARED
from tests.integrations.test_forces import sft
from tests.integrations.test_trained import columns, dpo
from tests.training.small import make_rows, make_tokenizer

STEEP = {"learning_rate": 1e-2, "logging_steps": 1, "max_steps": 6}


def cpo(folder: Path) -> Trainer:
    settings = {"max_length": 14, "bf16": False, **SHARED, **STEEP}
    return CPOTrainer(
        build("llama"),
        args=CPOConfig(output_dir=str(folder), **settings),
        train_dataset=Dataset.from_dict(columns()),
        processing_class=make_tokenizer(),
    )


def gradients(trainer: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, dict(inputs)).backward()
    named = trainer.model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def first_step(tmp_path: Path, **settings: Any) -> tuple[Any, dose.DesignedDose, Any]:
    """A trainer some steps into its training, a dose, and a batch."""
    trainer: Any = dpo(tmp_path, **STEEP)
    trainer.train()
    trainer.state.global_step = 0
    designed = dose.DesignedDose(trainer, **settings)
    designed.on_train_begin(trainer.args, trainer.state, trainer.control)
    trainer.model.train()
    batches = list(trainer.get_train_dataloader())
    return trainer, designed, batches


@pytest.mark.parametrize("per", ["batch", "pair", "token"])
def test_the_step_lowers_no_sample_of_other_chosen_answers(tmp_path: Path, per: Any) -> None:
    trainer, designed, batches = first_step(tmp_path, per=per, sample=3)
    answers, weakened = list(designed._others), 0
    for inputs in batches:
        designed.on_step_begin(trainer.args, trainer.state, trainer.control)
        made = gradients(trainer, inputs)
        logged = {name: values[-1] for name, values in designed._log.items()}
        # What the step does to the sample, by the weights' own gradients.
        direction = designed._direction
        rate = designed._optimizer.param_groups[0]["lr"]
        by_weights = -rate * sum(float((made[n] * direction[n]).sum()) for n in made)
        size = abs(logged["dose/others_whole"]) + abs(logged["dose/others"])
        assert logged["dose/others"] == pytest.approx(by_weights, abs=0.02 * size)
        if logged["dose/others_whole"] < 0 and logged["dose/rejected"] > 0:
            assert logged["dose/others"] == pytest.approx(0, abs=1e-5 * size)
        weakened += logged["dose/rejected"] < 1
        assert logged["dose/others"] >= logged["dose/others_whole"] - 1e-5 * size
    assert weakened and answers and not designed.off


def test_only_the_gradient_through_rejected_answers_is_weakened(tmp_path: Path) -> None:
    trainer, designed, batches = first_step(tmp_path)
    dosed: list[tuple[dict[str, Tensor], float]] = []
    for inputs in batches:
        designed.on_step_begin(trainer.args, trainer.state, trainer.control)
        dosed.append((gradients(trainer, inputs), designed._log["dose/rejected"][-1]))
    designed.on_train_end(trainer.args, trainer.state, trainer.control)
    assert any(0 < least < 1 for _, least in dosed)
    for inputs, (made, least) in zip(batches, dosed, strict=True):

        def weaken(module: Any, arguments: Any, output: Any, least: float = least) -> None:
            if torch.is_grad_enabled():
                rows = torch.ones(len(output.log_probs), 1)
                rows[len(rows) // 2 :] = least
                output.log_probs.register_hook(partial(torch.mul, rows))

        handle = trainer.model.register_forward_hook(weaken)
        for name, gradient in gradients(trainer, inputs).items():
            torch.testing.assert_close(made[name], gradient, rtol=1e-4, atol=1e-7)
        handle.remove()


def test_the_metric_is_the_optimizer_s(tmp_path: Path) -> None:
    """A small step along P q raises the sample by as much as is counted."""
    trainer, designed, batches = first_step(tmp_path, sample=4)
    gradients(trainer, batches[0])
    model, logits = trainer.model, ResponseLogits(trainer.model)
    ids = {
        tuple(ids[mask.bool()].tolist())
        for ids, mask in zip(batches[0]["input_ids"], batches[0]["attention_mask"], strict=True)
    }
    assert all(one.ids not in ids for one in designed._sample)
    batch = collate(designed._sample, 0)
    means = []
    for sign in (-1, 1):
        moved = {
            name: weight.detach() + sign * 1e-3 / designed._rise * designed._direction[name]
            for name, weight in model.named_parameters()
        }
        with torch.no_grad():
            total = torch.func.functional_call(
                logits, {f"model.{n}": w for n, w in moved.items()}, (batch, token_logps)
            )
        means.append(float(total.sum()) / len(designed._sample))
    assert means[1] - means[0] == pytest.approx(2e-3, rel=0.05)


def weights_after(trainer: Any, *callbacks: Any) -> dict[str, Tensor]:
    for one in callbacks:
        trainer.add_callback(one)
    trainer.train()
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_whole_pushes_train_as_without_it_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = weights_after(dpo(tmp_path, **STEEP))

    def whole(parts: Any, per: str) -> list[Tensor]:
        return [torch.ones_like(part.effect) for part in parts]

    monkeypatch.setattr(dose, "designed_doses", whole)
    trainer = dpo(tmp_path, **STEEP)
    same = weights_after(trainer, dose.DesignedDose(trainer))
    assert all(torch.equal(plain[name], same[name]) for name in plain)

    def broken(parts: Any, per: str) -> list[Tensor]:
        raise ValueError("no dose today")

    monkeypatch.setattr(dose, "designed_doses", broken)
    trainer = dpo(tmp_path, **STEEP)
    with caplog.at_level(logging.WARNING, logger="dynolab"):
        same = weights_after(trainer, dose.DesignedDose(trainer))
    assert all(torch.equal(plain[name], same[name]) for name in plain)
    assert sum("no dose today" in record.message for record in caplog.records) == 1


def test_it_is_one_line_in_a_script_and_its_cost_is_logged(tmp_path: Path) -> None:
    trainer = dpo(tmp_path, **STEEP)
    trainer.add_callback(dynolab.DesignedDose(trainer))
    trainer.train()
    logged = [line for line in trainer.state.log_history if "dose/rejected" in line]
    assert len(logged) == 6
    assert all(0 <= line["dose/rejected"] <= 1 for line in logged)
    assert any(line["dose/rejected"] < 1 for line in logged)
    assert all(line["dose/others"] >= line["dose/others_whole"] - 1e-6 for line in logged)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": ["sigmoid", "sft"]},
        {"loss_type": "apo_zero", "gradient_accumulation_steps": 2},
        {"peft": LoraConfig(r=2, target_modules=["q_proj"])},
        {"bf16": True},
        {"dtype": torch.bfloat16},
        {"optim": "sgd"},
        {"gradient_checkpointing": True},
    ],
    ids=lambda one: "-".join(one),
)
def test_any_loss_and_way_of_training_has_doses(tmp_path: Path, settings: Any) -> None:
    trainer = dpo(tmp_path, **STEEP | settings)
    designed = dose.DesignedDose(trainer, every=2)
    trainer.add_callback(designed)
    trainer.train()
    assert not designed.off
    assert sum("dose/rejected" in line for line in trainer.state.log_history) == 6


def test_a_trainer_of_another_loss_reads_logits(tmp_path: Path) -> None:
    trainer = cpo(tmp_path)
    designed = dose.DesignedDose(trainer, examples=make_rows(6))
    trainer.add_callback(designed)
    trainer.train()
    assert not designed.off
    assert designed._others


@pytest.mark.parametrize(
    ("field", "settings"),
    [("sample", {"sample": 0}), ("every", {"every": 0})],
)
def test_what_cannot_be_is_refused(tmp_path: Path, field: str, settings: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        dose.DesignedDose(dpo(tmp_path), **settings)


def test_a_trainer_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DPOTrainer"):
        dose.DesignedDose(sft(tmp_path))
