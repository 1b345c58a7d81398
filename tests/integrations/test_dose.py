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
from transformers import Trainer, TrainerCallback
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import dynolab
from dynolab.data.batches import collate
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from dynolab.integrations import dose
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from tests.benchmarks.models import build
from tests.fidelity import doses
from tests.integrations.test_callback import SHARED
from tests.integrations.test_forces import grpo, sft
from tests.integrations.test_trained import columns, dpo
from tests.training.small import make_rows, make_tokenizer

DROPPED = LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=0.2)
STEEP = {"learning_rate": 1e-2, "logging_steps": 1, "max_steps": 6}


def pairs(folder: Path, trainer: Any, config: Any) -> Trainer:
    """A trainer of CPO or ORPO."""
    settings = {"max_length": 14, "bf16": False, **SHARED, **STEEP}
    return trainer(
        build("llama"),
        args=config(output_dir=str(folder), **settings),
        train_dataset=Dataset.from_dict(columns()),
        processing_class=make_tokenizer(),
    )


def rejected_ones() -> list[Example]:
    """Answers that the training pushes down."""
    return [row.model_copy(update={"chosen": row.rejected}) for row in make_rows(12)]


def lines_of(trainer: Any) -> list[dict[str, float]]:
    return [line for line in trainer.state.log_history if "dose/rejected" in line]


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
    answers, weakened = list(designed._protected._answers), 0
    for inputs in batches:
        designed.on_step_begin(trainer.args, trainer.state, trainer.control)
        made = gradients(trainer, inputs)
        (effects,) = designed._effects
        dose, whole, dosed, size = effects.tolist()
        # What the step does to the sample, by the weights' own gradients.
        by_weights = -sum(
            float((made[n] * way).sum()) for n, way in designed._protected.direction.items()
        )
        assert dosed == pytest.approx(by_weights, abs=0.01 * size)
        if whole < 0 and dose > 0:
            assert dosed == pytest.approx(0, abs=1e-5 * size)
        weakened += dose < 1
        assert dosed >= whole - 1e-5 * size
    assert weakened and answers and not designed.off


def test_only_the_gradient_through_rejected_answers_is_weakened(tmp_path: Path) -> None:
    trainer, designed, batches = first_step(tmp_path)
    dosed: list[tuple[dict[str, Tensor], float]] = []
    for inputs in batches:
        designed.on_step_begin(trainer.args, trainer.state, trainer.control)
        dosed.append((gradients(trainer, inputs), float(designed._effects[0][0])))
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
    assert all(one.ids not in ids for one in designed._protected.answers)
    batch = collate(designed._protected.answers, 0)
    means = []
    for sign in (-1, 1):
        moved = {
            name: weight.detach()
            + sign * 1e-3 / designed._protected.rise * designed._protected.direction[name]
            for name, weight in model.named_parameters()
        }
        with torch.no_grad():
            total = torch.func.functional_call(
                logits, {f"model.{n}": w for n, w in moved.items()}, (batch, token_logps)
            )
        means.append(float(total.sum()) / len(designed._protected.answers))
    assert means[1] - means[0] == pytest.approx(2e-3, rel=0.05)


def whole_pushes(parts: Any, per: str) -> list[Tensor]:
    return [torch.ones_like(part.effect) for part in parts]


def weights_after(trainer: Any, *callbacks: Any) -> dict[str, Tensor]:
    for one in callbacks:
        trainer.add_callback(one)
    trainer.train()
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def test_whole_pushes_train_as_without_it_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = weights_after(dpo(tmp_path, **STEEP))

    monkeypatch.setattr(dose, "designed_doses", whole_pushes)
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
    clipping = trainer.accelerator.clip_grad_norm_
    trainer.train()
    assert trainer.accelerator.clip_grad_norm_ == clipping
    logged = lines_of(trainer)
    assert len(logged) == 6
    assert all(0 <= line["dose/rejected"] <= 1 for line in logged)
    assert any(line["dose/rejected"] < 1 for line in logged)
    assert all(line["dose/others"] >= line["dose/others_whole"] for line in logged)


def test_doses_in_bf16_are_those_in_float32(tmp_path: Path) -> None:
    assert 0.95 < doses.bf16_over_fp32(tmp_path) < 1.05


@pytest.mark.parametrize("name", doses.STEPS)
def test_what_is_logged_is_what_the_step_did(tmp_path: Path, name: str) -> None:
    ratios = doses.logged_over_true(tmp_path, [name])
    assert 0.9 < ratios[name] < 1.1


def test_what_moves_weights_between_steps_is_not_the_step_s(tmp_path: Path) -> None:
    class Shrinking(TrainerCallback):
        @torch.no_grad()
        def on_step_begin(self, *arguments: Any, model: Any, **named: Any) -> None:
            for weight in model.parameters():
                weight *= 0.99

    trainer = dpo(tmp_path, **STEEP | {"learning_rate": 1e-3})
    designed = dose.DesignedDose(trainer)
    for callback in (designed, passes := doses.Passes(designed), Shrinking()):
        trainer.add_callback(callback)
    trainer.train()
    logged = [line["dose/others"] for line in lines_of(trainer)]
    assert logged == pytest.approx(passes.changes, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"optim": "sgd"}, 1.1),
        ({"optim": "sgd", "gradient_accumulation_steps": 2}, 1.1),
        ({"learning_rate": 1e-4}, 2),  # Adam's second moments would be those of larger gradients
    ],
    ids=["sgd", "accumulated", "adamw"],
)
def test_what_whole_pushes_would_do_is_what_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any, most: float
) -> None:
    settings = {"learning_rate": 1e-3, "max_steps": 1, "max_grad_norm": 0.0, **settings}
    (dosed,), _ = doses.train(tmp_path / "dosed", **settings)
    monkeypatch.setattr(dose, "designed_doses", whole_pushes)
    (whole,), _ = doses.train(tmp_path / "whole", **settings)
    assert dosed["dose/rejected"] < 1
    assert 0.9 < dosed["dose/others_whole"] / whole["dose/others"] < most


@pytest.mark.parametrize("optim", ["sgd", "adamw_torch"])
def test_what_momentum_does_is_told_apart(tmp_path: Path, optim: str) -> None:
    settings = {"optim": optim, "learning_rate": 1e-4, "weight_decay": 0.1, "max_steps": 2}
    if optim == "sgd":
        settings |= {"optim_args": "momentum=0.9", "learning_rate": 1e-3}
    trainer: Any = dpo(tmp_path, logging_steps=1, lr_scheduler_type="constant", **settings)
    loss = trainer.compute_loss

    def compute(*arguments: Any, **named: Any) -> Tensor:
        return loss(*arguments, **named) * (trainer.state.global_step == 0)

    trainer.compute_loss = compute
    trainer.add_callback(dose.DesignedDose(trainer, examples=rejected_ones(), every=1))
    trainer.train()
    line = lines_of(trainer)[1]
    assert line["dose/momentum"] == pytest.approx(line["dose/others"], rel=0.05)


def test_a_warm_up_has_doses_from_its_first_step(tmp_path: Path) -> None:
    trainer = dpo(tmp_path, **STEEP, warmup_steps=2)
    trainer.add_callback(designed := dose.DesignedDose(trainer, examples=rejected_ones()))
    trainer.train()
    assert not designed.off
    assert lines_of(trainer)[0]["dose/rejected"] < 1
    assert lines_of(trainer)[0]["dose/others_whole"] == 0


def off_after(trainer: Any, caplog: pytest.LogCaptureFixture) -> str:
    """Why doses gave up in a training, which ends with the weights of one without them."""
    trainer.add_callback(designed := dose.DesignedDose(trainer))
    with caplog.at_level(logging.WARNING, logger="dynolab"):
        trainer.train()
    assert sum("DesignedDose" in record.message for record in caplog.records) == 1
    assert trainer.state.global_step == STEEP["max_steps"]
    assert not lines_of(trainer) and not designed._handles
    return designed.off


def round_the_forward(trainer: Any, share: float = 1.0) -> Any:
    """A trainer whose loss is, by a share, computed of hidden states."""
    usual = trainer.compute_loss

    def compute(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Tensor:
        hidden = model.model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
        logps = model.lm_head(hidden)[:, :-1].log_softmax(-1)
        logps = logps.gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
        chosen, rejected = (logps * inputs["completion_mask"][:, 1:]).sum(1).chunk(2)
        loss: Tensor = share * (rejected - chosen).mean()
        return loss if share == 1 else loss + usual(model, inputs, *arguments, **named)

    trainer.compute_loss = compute
    return trainer


def test_a_loss_round_the_forward_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = weights_after(round_the_forward(dpo(tmp_path, **STEEP)))
    trainer = round_the_forward(dpo(tmp_path, **STEEP))
    reason = off_after(trainer, caplog)
    assert "DPOTrainer" in reason and "round the outputs of the model's forward" in reason
    assert all(torch.equal(plain[name], p) for name, p in trainer.model.named_parameters())


def test_a_part_of_the_loss_round_the_forward_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = round_the_forward(dpo(tmp_path, **STEEP), 0.1)
    trainer.add_callback(designed := dose.DesignedDose(trainer))
    with caplog.at_level(logging.WARNING, logger="dynolab"):
        trainer.train()
    assert not designed.off
    assert sum("a part of the gradient alone" in line.message for line in caplog.records) == 1


def test_a_forward_that_rounds_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = dpo(tmp_path, **STEEP)
    norm = trainer.model.model.norm
    norm.register_forward_hook(lambda module, inputs, output: output.bfloat16().float())
    assert "rounding drowns" in off_after(trainer, caplog)


def test_an_optimizer_of_another_form_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer: Any = dpo(tmp_path, **STEEP)
    trainer.optimizer = torch.optim.SGD(
        trainer.model.parameters(), lr=0.01, momentum=0.9, nesterov=True
    )
    assert "SGD" in (reason := off_after(trainer, caplog)) and "nesterov" in reason


def test_a_training_after_one_that_was_broken_off_has_its_doses_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = dpo(tmp_path, **STEEP)
    trainer.add_callback(designed := dose.DesignedDose(trainer))
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(trainer, "log", raises_interrupt)
        trainer.train()
    trainer.train()
    assert not designed.off and len(lines_of(trainer)) == 6
    assert not trainer.model._forward_hooks and not trainer.model._forward_pre_hooks


def raises_interrupt(*arguments: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": ["sigmoid", "sft"]},
        {"loss_type": "apo_zero", "gradient_accumulation_steps": 2},
        {"peft": LoraConfig(r=2, target_modules=["q_proj"])},
        {"bf16": True},
        {"dtype": torch.bfloat16},
        {"optim": "sgd"},
        {"optim": "rmsprop"},
        {"gradient_checkpointing": True},
        {"peft": DROPPED, "disable_dropout": False, "gradient_checkpointing": True},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_any_loss_and_way_of_training_has_doses(tmp_path: Path, settings: Any) -> None:
    trainer = dpo(tmp_path, **STEEP | settings)
    designed = dose.DesignedDose(trainer, every=2)
    trainer.add_callback(designed)
    trainer.train()
    assert not designed.off
    assert len(lines_of(trainer)) == 6


@pytest.mark.parametrize(
    ("trainer", "config"), [(CPOTrainer, CPOConfig), (ORPOTrainer, ORPOConfig)]
)
def test_trainers_of_other_losses_have_doses_in_their_logs(
    tmp_path: Path, trainer: Any, config: Any
) -> None:
    trained = pairs(tmp_path, trainer, config)
    trained.add_callback(designed := dose.DesignedDose(trained))
    trained.add_callback(passes := doses.Passes(designed))
    trained.train()
    assert not designed.off
    logged = [line["dose/others"] for line in lines_of(trained)]
    assert logged == pytest.approx(passes.changes, rel=0.01)


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


def one_is_right(completions: list[str], **_: Any) -> list[float]:
    """The first answer of a group."""
    return [float(place % 4 == 0) for place in range(len(completions))]


def like_the_right_one() -> dict[str, Tensor]:
    """A group of one right answer and three that end otherwise."""
    ends = torch.tensor([[11], [12], [13], [14]])
    completions = torch.cat([torch.tensor([[5, 7, 9]]).expand(4, 3), ends], 1)
    prompts = torch.tensor([[0, 4, 6]]).expand(4, 3)
    return {
        "prompt_ids": prompts,
        "prompt_mask": (prompts > 0).long(),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": torch.tensor([0.4, -0.4, -0.4, -0.4]),
        "num_items_in_batch": torch.tensor(16),
    }


@pytest.mark.parametrize("per", ["batch", "token"])
def test_a_batch_of_groups_lowers_none_of_its_right_answers(tmp_path: Path, per: Any) -> None:
    trainer: Any = grpo(tmp_path, one_is_right, beta=0.0)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1  # set by its training
    designed = dynolab.DesignedGroupDose(trainer, per=per)
    designed.on_train_begin(trainer.args, trainer.state, trainer.control)
    designed.on_step_begin(trainer.args, trainer.state, trainer.control)
    trainer.model.train()
    made, inputs = gradients(trainer, like_the_right_one()), like_the_right_one()
    ((dose, whole, dosed, size),) = (effects.tolist() for effects in designed._effects)
    assert 0 < dose < 1 and whole < 0
    assert dosed == pytest.approx(0, abs=1e-5 * size)
    tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    assert [answer.ids for answer in designed._protected.answers] == [tuple(tokens[0, 1:].tolist())]
    by_weights = sum(float((made[n] * q).sum()) for n, q in designed._protected.direction.items())
    assert by_weights == pytest.approx(0, abs=0.01 * size)
    designed.on_train_end(trainer.args, trainer.state, trainer.control)
    plain = gradients(trainer, inputs)
    assert any(not torch.allclose(plain[name], made[name]) for name in made)


def test_a_training_on_groups_logs_its_doses_and_is_left_as_it_was(tmp_path: Path) -> None:
    trainer: Any = grpo(tmp_path, one_is_right)
    trainer.args.logging_steps = 1
    trainer.add_callback(dynolab.DesignedGroupDose(trainer))
    plain_loss = trainer.compute_loss
    trainer.train()
    assert trainer.compute_loss == plain_loss
    assert len(lines_of(trainer)) == trainer.state.global_step > 1


def test_doses_on_groups_take_their_trainer_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GRPOTrainer"):
        dynolab.DesignedGroupDose(dpo(tmp_path))
