"""What `DesignedDose` says, in bf16 beside float32 and beside the steps that were made.

Tiny models in TRL's DPO training, whose rejected answers are protected: so doses lie between 0
and 1. What a step does to them is measured by plain passes before and after it, in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, TrainerCallback
from transformers.trainer_callback import PrinterCallback

from dynolab.integrations.dose import DesignedDose
from tests.benchmarks.figures import spread
from tests.integrations.test_trained import dpo
from tests.training.small import make_rows

SGD: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.01}
STEPS: dict[str, dict[str, Any]] = {
    "sgd": {**SGD, "max_grad_norm": 0.0},
    "adamw": {"learning_rate": 1e-4},
    "clipping": {"optim": "sgd", "optim_args": "momentum=0.9", "learning_rate": 0.1}
    | {"max_grad_norm": 0.5},
    "two_rates": {"learning_rate": 1e-5, "times": 16.0},
}
"""Settings of a training; `times`: how much faster embedding and head learn than all else."""


class Passes(TrainerCallback):
    """What steps do to the mean log π of the dose's sample, in nats."""

    def __init__(self, dose: DesignedDose) -> None:
        self.dose, self.changes = dose, list[float]()

    def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        """Scores the sample before a step."""
        self.before = self.mean()

    def on_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        """Scores it after the step."""
        self.changes.append(self.mean() - self.before)

    @torch.no_grad()
    def mean(self) -> float:
        """By the forward of the model's class, in float64."""
        trained: Any = self.dose.trainer.model
        model = AutoModelForCausalLM.from_config(trained.config).double().eval()
        model.load_state_dict(trained.state_dict())
        total = 0.0
        for answer in self.dose._protected.answers:
            ids = torch.tensor([answer.ids])
            logps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            scores = logps.gather(-1, ids[0, 1:, None])[:, 0]
            total += float(scores[answer.prompt_length - 1 :].sum())
        return total / len(self.dose._protected.answers)


def train(
    folder: Path, *, times: float = 1.0, **settings: Any
) -> tuple[list[dict[str, float]], list[float]]:
    """A training's lines of doses, and what its steps did to the protected answers."""
    trainer: Any = dpo(
        folder, logging_steps=1, lr_scheduler_type="constant", **{"max_steps": 4, **settings}
    )
    if times != 1:
        groups: dict[bool, list[Any]] = {False: [], True: []}
        for name, parameter in trainer.model.named_parameters():
            groups["embed" in name or "head" in name].append(parameter)
        rate = trainer.args.learning_rate
        trainer.optimizer = torch.optim.AdamW(
            [{"params": groups[fast], "lr": rate * times**fast} for fast in groups], weight_decay=0
        )
    protected = [row.model_copy(update={"chosen": row.rejected}) for row in make_rows(12)]
    dose = DesignedDose(trainer, examples=protected)
    passes = Passes(dose)
    for callback in (dose, passes):
        trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert not dose.off, dose.off
    return [line for line in trainer.state.log_history if "dose/others" in line], passes.changes


def farthest(ratios: list[float]) -> float:
    """The ratio that is farthest from 1."""
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def bf16_over_fp32(home: Path) -> float:
    """Doses of a training in bf16 over those in float32, of the step where they differ most."""
    coarse, fine = (
        [line["dose/rejected"] for line in train(home / str(bf16), bf16=bf16, **SGD)[0]]
        for bf16 in (True, False)
    )
    assert any(0 < dose < 1 for dose in fine)
    return farthest([one / other for one, other in zip(coarse, fine, strict=True) if other])


def logged_over_true(home: Path, names: Iterable[str] = STEPS) -> dict[str, float]:
    """`dose/others` over the change by the step, of the step where they differ most."""
    ratios = {}
    for name in names:
        lines, changes = train(home / name, **STEPS[name])
        logged = [line["dose/others"] for line in lines]
        ratios[name] = farthest([own / true for own, true in zip(logged, changes, strict=True)])
    return ratios


def measure(home: Path) -> dict[str, float]:
    """`dose_bf16_over_fp32`, and `dose_logged_over_true` over kinds of steps, with their ends."""
    ratios = logged_over_true(home)
    print(ratios, file=sys.stderr)
    return {
        **spread("dose_logged_over_true", [*ratios.values()]),
        **spread("dose_bf16_over_fp32", [bf16_over_fp32(home)]),
    }
