"""Callbacks that are given a trainer and nothing else, in trainings as people run them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RLOOConfig,
    RLOOTrainer,
)

from dynolab.errors import ConfigError
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from dynolab.report.ledger.page import waterfall_figure
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from tests.benchmarks.models import build
from tests.integrations.test_callback import SHARED, probes
from tests.integrations.test_forces import grpo, sft, some_reward, trained
from tests.training.small import make_policy, make_rows, make_tokenizer

# Adam's first step is the gradient's sign, which rounding decides where it is near zero.
SGD: dict[str, Any] = {"learning_rate": 0.1, "optim": "sgd", "optim_args": "momentum=0.9"}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' + message['content'] + ' <eos> ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def columns(chat: bool = False) -> dict[str, list[Any]]:
    rows = make_rows(12)
    texts = {
        name: [getattr(row, name) for row in rows] for name in ("prompt", "chosen", "rejected")
    }
    if chat:
        for name, values in texts.items():
            role = "user" if name == "prompt" else "assistant"
            texts[name] = [[{"role": role, "content": value.strip()}] for value in values]
    return texts


def dpo(
    folder: Path,
    family: str = "llama",
    *,
    chat: bool = False,
    peft: LoraConfig | None = None,
    dtype: torch.dtype = torch.float32,
    model: torch.nn.Module | None = None,
    held_out: bool = False,
    data: dict[str, list[Any]] | None = None,
    **more: Any,
) -> Trainer:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    settings = {"max_length": 14, "bf16": False, **SHARED, "max_steps": 3, **more}
    rows = Dataset.from_dict(data or columns(chat))
    return DPOTrainer(
        model or build(family).to(dtype),
        ref_model=None if peft else build(family).to(dtype),
        args=DPOConfig(output_dir=str(folder), **settings),
        train_dataset=rows.select(range(8)),
        eval_dataset=rows.select(range(8, 12)) if held_out else None,
        processing_class=tokenizer,
        peft_config=peft,
    )


def kto(folder: Path) -> Trainer:
    texts = columns()
    sides = zip(texts["chosen"], texts["rejected"], strict=True)
    rows = {
        "id": [f"mine-{number}" for number in range(24)],
        "prompt": [prompt for prompt in texts["prompt"] for _ in range(2)],
        "completion": [text for pair in sides for text in pair],
        "label": [True, False] * 12,
    }
    settings = {"max_length": 14, "bf16": False, **SHARED, "max_steps": 3}
    return KTOTrainer(
        build("llama"),
        ref_model=build("llama"),
        args=KTOConfig(output_dir=str(folder), **settings),
        train_dataset=Dataset.from_dict(rows),
        processing_class=make_tokenizer(),
    )


def rloo(folder: Path) -> Trainer:
    tokenizer = make_tokenizer()
    tokenizer.padding_side = "left"
    make_policy(tokenizer).save_pretrained(folder / "start")
    more = {"per_device_train_batch_size": 4, "max_steps": 3, "bf16": False}
    return RLOOTrainer(
        str(folder / "start"),
        reward_funcs=some_reward,
        args=RLOOConfig(
            output_dir=str(folder), num_generations=4, max_completion_length=6, **SHARED | more
        ),
        train_dataset=Dataset.from_dict({"prompt": columns()["prompt"]}),
        processing_class=tokenizer,
    )


def share(logged: list[dict[str, float]], part: str) -> float:
    """The largest part of a step beside what its sequences did."""
    return max(
        abs(line[f"ledger/chosen/{part}"])
        / (abs(line["ledger/chosen/chosen"]) + abs(line["ledger/chosen/rejected"]))
        for line in logged
    )


def account(forces: ForceCallback) -> LedgerReader:
    return read_ledger(forces.folder, forces.folder)


def check_same(one: LedgerReader, other: LedgerReader, most: float) -> None:
    """Two accounts of one training agree by example, up to so many nats."""
    assert sorted(one.example) == sorted(other.example)
    for own, theirs in zip(one.accounts, other.accounts, strict=True):
        lines = other.by_example(theirs.lines)
        assert one.by_example(own.lines) == pytest.approx(lines, abs=most)
        assert own.carried_in == pytest.approx(theirs.carried_in, abs=most)
        assert own.residual == pytest.approx(theirs.residual, abs=most)


@pytest.mark.parametrize(
    "family", ["gpt2", "opt", "qwen3", "gemma3", "cohere", "mamba", "modernbert_decoder"]
)
def test_parameters_without_a_rule_are_measured_by_autograd(family: str, tmp_path: Path) -> None:
    forces, logged = trained(dpo, tmp_path, family=family)
    assert share(logged, "unexplained") == 0
    assert share(logged, "arithmetic") < 1e-5
    assert all(name.startswith("row-") for name in account(forces).example)


def test_experts_are_accounted_for(tmp_path: Path) -> None:
    _, logged = trained(dpo, tmp_path, family="mixtral")
    assert share(logged, "unexplained") < 1e-3


LORA = LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.2)
DORA = LoraConfig(r=2, target_modules="all-linear", use_dora=True)


@pytest.mark.parametrize(
    ("more", "arithmetic", "unexplained"),
    [
        ({"bf16": True}, 0.02, 0),
        ({"bf16": True, "peft": LORA, "gradient_checkpointing": True}, 0.02, 0),
        ({"gradient_checkpointing": True}, 1e-5, 0),
        (
            {
                "gradient_checkpointing": True,
                "gradient_checkpointing_kwargs": {"use_reentrant": True},
            },
            1e-5,
            0,
        ),
        ({"peft": DORA}, 1e-4, 0),
        ({"optim": "adafactor"}, 1e-5, 1),
        ({"dtype": torch.bfloat16, "bf16": True}, 2, 0),
        pytest.param(
            {"torch_compile": True, "torch_compile_backend": "eager"},
            1e-5,
            0,
            marks=pytest.mark.study,
        ),
    ],
    ids=[
        "bf16",
        "lora",
        "checkpointing",
        "reentrant",
        "dora",
        "adafactor",
        "bf16-weights",
        "compile",
    ],
)
def test_people_s_trainings_are_accounted_for(
    more: dict[str, Any], arithmetic: float, unexplained: float, tmp_path: Path
) -> None:
    forces, logged = trained(dpo, tmp_path, **more)
    assert share(logged, "arithmetic") < arithmetic
    assert share(logged, "unexplained") <= unexplained
    history = forces.trainer.state.log_history
    probed = [line["probe/chosen/logp"] for line in history if "probe/chosen/logp" in line]
    for line, (before, after) in zip(logged, pairwise(probed), strict=True):
        assert line["ledger/chosen/measured"] == pytest.approx(after - before, abs=1e-4)


def test_adapters_of_weights_in_4_bits_are_accounted_for(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="quantised weights need bitsandbytes")
    build("llama").save_pretrained(tmp_path / "start")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    ended, logged = [], []
    for name in ("alone", "watched"):
        model = AutoModelForCausalLM.from_pretrained(
            tmp_path / "start", quantization_config=settings, device_map="cpu"
        )
        for module in model.modules():  # bitsandbytes rounds weights again for scoring on some CPUs
            module.support_avx512bf16_for_cpu = False
        trainer = dpo(tmp_path / name, model=model, peft=LORA)
        if name == "watched":
            trainer.add_callback(ForceCallback(trainer, every=1))
        trainer.train()
        ended.append({n: p.clone() for n, p in trainer.model.named_parameters() if "lora" in n})
        logged = [line for line in trainer.state.log_history if "ledger/chosen/chosen" in line]
    assert all(torch.equal(own, ended[1][name]) for name, own in ended[0].items())
    assert len(logged) == 3
    assert share(logged, "arithmetic") < 0.02
    assert share(logged, "unexplained") == 0


def test_rows_keep_their_own_ids_and_sides(tmp_path: Path) -> None:
    forces, _ = trained(kto, tmp_path)
    ledger = account(forces)
    for name, side in zip(ledger.example, ledger.side, strict=True):
        assert side == ("rejected" if int(name.removeprefix("mine-")) % 2 else "chosen")
    assert ledger.accounts[0].row.pairs[0] == "mine-0"


@pytest.mark.parametrize("make", [grpo, rloo])
def test_generated_answers_have_their_prompt_s_row(
    make: Callable[[Path], Trainer], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="rows"):
        ForceCallback(make(tmp_path))
    forces = ForceCallback(trainer := make(tmp_path), probes(), every=1)
    trainer.add_callback(forces)
    trainer.train()
    assert not forces.off
    ledger = account(forces)
    assert all(name.startswith("row-") for name in ledger.example)
    assert len(set(ledger.example)) == len(ledger.steps)


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
@pytest.mark.parametrize("chat", [False, True])
def test_probes_are_what_trl_says_of_the_same_rows(chat: bool, mode: str, tmp_path: Path) -> None:
    trainer = dpo(tmp_path, chat=chat, held_out=True, max_length=10, truncation_mode=mode)
    trainer.add_callback(ProbeCallback(trainer, every=1))
    trainer.add_callback(forces := ForceCallback(trainer, every=1))
    trainer.train()
    evaluated = trainer.evaluate()
    last = [line for line in trainer.state.log_history if "probe/chosen/logp" in line][-1]
    for side in ("chosen", "rejected"):
        assert last[f"probe/{side}/logp"] == pytest.approx(
            evaluated[f"eval_logps/{side}"], abs=1e-4
        )
    assert forces.off == "" and {a.row.split for a in account(forces).accounts} == {"heldout"}
    assert all(name.startswith("row-") for name in account(forces).example)


def test_sft_in_plain_words(tmp_path: Path) -> None:
    forces, logged = trained(sft, tmp_path, max_steps=3)
    assert share(logged, "unexplained") == 0
    assert [own.row.kind for own in account(forces).accounts] == ["chosen"]


def test_a_gradient_that_no_sequence_makes_is_a_part_of_its_own(tmp_path: Path) -> None:
    def penalised(folder: Path) -> Trainer:
        trainer = dpo(folder)
        loss = trainer.compute_loss

        def more(model: Any, *arguments: Any, **named: Any) -> Any:
            weight = model.get_output_embeddings().weight
            return loss(model, *arguments, **named) + weight.square().sum()

        trainer.compute_loss = more  # type: ignore[method-assign]
        return trainer

    forces, logged = trained(penalised, tmp_path)
    assert share(logged, "unexplained") > 0.01
    for own in (ledger := account(forces)).accounts:
        bars = waterfall_figure(replace(ledger, accounts=(own,))).plot.data[0]
        assert sum(bars.y[:-1]) == pytest.approx(own.end, abs=1e-3)


def test_a_model_that_cannot_be_looked_at_is_trained_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(callback := ForceCallback(trainer, every=1))
    build = "dynolab.integrations.forces.GroupedGradients.build"
    monkeypatch.setattr(build, lambda *_: 1 / 0)
    trainer.train()
    assert "ZeroDivisionError" in callback.off and trainer.state.global_step == 3


@pytest.mark.parametrize("place", ["made", "lines", "begin"])
def test_a_failure_ends_the_account_and_not_the_training(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(forces := ForceCallback(trainer, every=1))

    def broken(arguments: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 2:
            monkeypatch.setattr(forces._live, place, lambda *_: 1 / 0)

    monkeypatch.setattr(forces, "on_step_end", broken)
    with caplog.at_level(logging.WARNING, "dynolab"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert "ZeroDivisionError" in forces.off
    assert sum("ZeroDivisionError" in line.message for line in caplog.records) == 1
    assert account(forces).summary.steps == 2
    assert (forces.folder / "ledger.html").exists()


def test_a_failing_probe_ends_the_probes_alone(tmp_path: Path) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(callback := ProbeCallback(trainer, every=1))
    callback.file.mkdir(parents=True)
    trainer.train()
    assert callback.off and trainer.state.global_step == 3


def test_a_dict_of_held_out_datasets_is_watched_whole(tmp_path: Path) -> None:
    trainer = dpo(tmp_path, held_out=True)
    trainer.eval_dataset = {"a": trainer.eval_dataset, "b": trainer.eval_dataset}
    callback = ProbeCallback(trainer, pairs=2)
    assert {row.pair_id for row in callback.rows} == {
        f"{name}/row-{number:06d}" for name in "ab" for number in range(2)
    }
