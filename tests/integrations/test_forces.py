"""Forces in real trainers: what moved which answer adds up, and training goes on as without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger import read_table
from dynolab.results.ledger_reader import read_ledger
from tests.integrations.test_callback import SHARED, STEPS, adapted, dpo, plain, probes
from tests.training.small import make_policy, make_rows, make_tokenizer

PARTS = (
    "chosen",
    "rejected",
    "together",
    "decay",
    "momentum",
    "unexplained",
    "arithmetic",
    "residual",
)


def sft(folder: Path, **more: Any) -> Trainer:
    rows = make_rows(8)
    columns = {
        "prompt": [row.prompt for row in rows],
        "completion": [row.chosen for row in rows],
    }
    settings = {"max_length": 48, "bf16": False, **SHARED, **more}
    arguments = SFTConfig(output_dir=str(folder), **settings)
    tokenizer = make_tokenizer()
    return SFTTrainer(
        make_policy(tokenizer),
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
    )


def some_reward(completions: list[str], **more: Any) -> list[float]:
    return [float(sum(map(ord, text)) % 7) for text in completions]


def no_reward(completions: list[str], **more: Any) -> list[float]:
    return [0.0] * len(completions)


def grpo(
    folder: Path, reward: Callable[..., list[float]] = some_reward, beta: float = 0.1
) -> Trainer:
    arguments = GRPOConfig(
        output_dir=str(folder),
        num_generations=4,
        max_completion_length=6,
        temperature=0.8,
        bf16=False,
        beta=beta,
        **SHARED | {"per_device_train_batch_size": 4},
    )
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    make_policy(tokenizer).save_pretrained(folder / "start")
    distributed.barrier()  # transformers saves on one rank
    return GRPOTrainer(
        str(folder / "start"),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [row.prompt for row in make_rows(8)]}),
        processing_class=tokenizer,
    )


def accumulated(folder: Path) -> Trainer:
    return sft(folder, gradient_accumulation_steps=3, max_grad_norm=0.05)


def without_gradient(folder: Path) -> Trainer:
    """Groups of equal rewards, which teach nothing."""
    return grpo(folder, no_reward, beta=0.0)


def with_unused(folder: Path) -> Trainer:
    """A parameter that no token reaches: torch's optimizer leaves it alone, decay and all."""
    trainer = sft(folder, weight_decay=0.5)
    trainer.model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    return trainer


def with_momentum(folder: Path) -> Trainer:
    return sft(folder, optim="sgd", optim_args="momentum=0.9", weight_decay=0.1)


TRAINERS = [
    plain,
    sft,
    dpo,
    adapted,
    grpo,
    accumulated,
    with_momentum,
    without_gradient,
    with_unused,
]


def trained(
    make: Callable[..., Trainer],
    folder: Path,
    rows: Any = None,
    *,
    every: int = 1,
    bound: float = 1e-5,
    **more: Any,
) -> tuple[ForceCallback, list[dict[str, float]]]:
    """Trains without and with both callbacks; checks weights and sums; returns what was logged."""
    weights, trainer, forces = [], None, None
    for watched in (False, True):
        torch.manual_seed(0)
        trainer = make(folder / str(watched), **more)
        if watched:
            forces = ForceCallback(trainer, rows, every=every)
            trainer.add_callback(forces)
            trainer.add_callback(ProbeCallback(trainer, rows, every=every))
        trainer.train()
        weights.append({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
    assert forces is not None and trainer is not None
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert not forces.off
    logged = [line for line in trainer.state.log_history if "ledger/chosen/measured" in line]
    assert [line["step"] for line in logged] == [0, every, 2 * every]
    for line in logged:
        for kind in {name.split("/")[1] for name in line if name.endswith("/measured")}:
            total = sum(line[f"ledger/{kind}/{part}"] for part in PARTS)
            assert total == pytest.approx(line[f"ledger/{kind}/measured"], abs=bound)
    return forces, logged


@pytest.mark.parametrize("make", TRAINERS)
def test_an_account_adds_up_and_training_goes_on_as_without(
    make: Callable[[Path], Trainer], tmp_path: Path
) -> None:
    forces, (first, *_) = trained(make, tmp_path, probes(), every=2, bound=2e-5)
    assert {"ledger/chosen/measured", "ledger/rejected/measured"} <= first.keys()
    ledger = read_ledger(forces.folder, forces.folder)
    assert ledger.summary.steps == 3
    assert ledger.summary.closure < 1e-4
    assert "Who moved it" in (forces.folder / "ledger.html").read_text()


def test_sequences_of_given_pairs_have_their_names(tmp_path: Path) -> None:
    trainer, rows = dpo(tmp_path), make_rows(8)
    trainer.add_callback(ForceCallback(trainer, probes(), examples=rows[:6], every=1))
    trainer.train()
    ledger = read_ledger(tmp_path / "ledger", tmp_path / "ledger")
    named = {row.id for row in rows[:6]} & set(ledger.examples)
    assert named and all(ledger.rows[name].rejected for name in named)
    assert not {row.id for row in rows[6:]} & set(ledger.examples)


def test_sides_are_told_by_the_loss(tmp_path: Path) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(ForceCallback(trainer, probes(), every=STEPS))
    trainer.train()
    responses = read_table(tmp_path / "ledger", "responses")
    assert sorted(responses["side"]) == ["chosen", "chosen", "rejected", "rejected"]


def test_packed_rows_are_refused_at_once(tmp_path: Path) -> None:
    trainer = sft(tmp_path, padding_free=True, max_length=None)
    with pytest.raises(ConfigError, match=r"trainer\.args\.padding_free"):
        ForceCallback(trainer, probes())


@pytest.mark.parametrize(
    ("rows", "kinds", "message"),
    [
        (probes(), ("said",), "kinds = 'said': no watched training answer is of this kind"),
        (
            [row for row in probes() if row.kind == "rejected"],
            ("argmax",),
            "kinds = 'argmax': no watched training answer is of this kind",
        ),
        (
            [row.model_copy(update={"response": " w1" * 60}) for row in probes()],
            ("chosen",),
            "kinds = 'chosen': its answers are longer than the model's context",
        ),
    ],
    ids=["unknown", "argmax of no chosen answer", "too long"],
)
def test_answers_that_cannot_be_watched_are_refused(
    rows: list[Any], kinds: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        ForceCallback(sft(tmp_path), rows, kinds=kinds)


@pytest.mark.parametrize("make", [dpo, adapted, grpo, sft])
def test_what_is_measured_at_answers_adds_up_too(
    make: Callable[[Path], Trainer], tmp_path: Path
) -> None:
    kinds = ("chosen", "entropy", "kl", "margin", "reward")
    trainer = make(tmp_path)
    forces = ForceCallback(trainer, probes(), every=1, kinds=kinds, reward="word_overlap")
    trainer.add_callback(forces)
    trainer.train()
    assert not forces.off
    ledger = read_ledger(forces.folder, forces.folder)
    assert [account.row.kind for account in ledger.accounts] == list(kinds)
    assert ledger.summary.closure < 1e-4 and not ledger.summary.checks
    by_kind = {account.row.kind: account for account in ledger.accounts}
    # The reference is the model that the training begins with.
    assert by_kind["kl"].start == pytest.approx(0, abs=1e-6) and by_kind["kl"].end > 0
    assert 0 < by_kind["entropy"].end < 5


def test_a_rule_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_rule"):
        ForceCallback(sft(tmp_path), probes(), kinds=("reward",), reward="no_rule")
