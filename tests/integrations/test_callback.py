"""The probes of real trainers, each row against a scoring of the saved model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.integrations.callback import ProbeCallback
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.training.alarm import AlarmConfig
from tests.training.small import make_policy, make_rows, make_tokenizer, probes_of

STEPS = 5
SHARED: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 2,
    "disable_tqdm": True,
}


def probes() -> list[ProbeRow]:
    return probes_of(make_rows(4))


def plain(folder: Path, **more: Any) -> Trainer:
    tokenizer = make_tokenizer()
    encoder = Encoder(tokenizer, 48, "error")
    rows = [{"input_ids": list(row.chosen.ids)} for row in encoder.examples(make_rows(8))]

    def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor(
            [row["input_ids"] + [2] * (longest - len(row["input_ids"])) for row in rows]
        )
        return {"input_ids": ids, "labels": ids}

    settings = {"remove_unused_columns": False, **SHARED, **more}
    arguments = TrainingArguments(output_dir=str(folder), **settings)
    return Trainer(
        make_policy(tokenizer),
        arguments,
        train_dataset=rows,  # type: ignore[arg-type]
        data_collator=collate,
        processing_class=tokenizer,
    )


def dpo(folder: Path, **more: Any) -> Trainer:
    rows = make_rows(8)
    columns = {
        side: [getattr(row, side) for row in rows] for side in ("prompt", "chosen", "rejected")
    }
    arguments = DPOConfig(output_dir=str(folder), max_length=48, bf16=False, **SHARED)
    tokenizer = make_tokenizer()
    make_policy(tokenizer).save_pretrained(folder / "start")  # TRL loads the reference from there
    policy = AutoModelForCausalLM.from_pretrained(folder / "start")
    return DPOTrainer(
        policy,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        **more,
    )


def adapted(folder: Path) -> Trainer:
    return dpo(folder, peft_config=LoraConfig(r=2, target_modules="all-linear"))


@pytest.mark.parametrize("make", [plain, dpo, adapted])
def test_a_trainer_is_probed_before_during_and_after(
    make: Callable[[Path], Trainer], tmp_path: Path
) -> None:
    trainer = make(tmp_path)
    model, encoder = trainer.model, Encoder(make_tokenizer(), 48, "error")
    assert isinstance(model, torch.nn.Module)
    before = score_probes(ResponseLogits(model), probes(), encoder, batch_tokens=1000)
    callback = ProbeCallback(trainer, probes(), every=2)
    trainer.add_callback(callback)
    trainer.train()
    after = score_probes(ResponseLogits(model), probes(), encoder, batch_tokens=1000)
    rows = list(read_rows(tmp_path / "probes.jsonl", ProbeScore))
    assert [row.step for row in rows] == [step for step in (0, 2, 4, STEPS) for _ in probes()]
    for step, scores in ((0, before), (STEPS, after)):
        logps = [row.logp for row in rows if row.step == step]
        assert logps == pytest.approx([score.logp for score in scores], abs=1e-4)
    assert before[0].logp != pytest.approx(after[0].logp, abs=1e-2)
    logged = {
        line["step"]: line for line in trainer.state.log_history if "probe/chosen/logp" in line
    }
    assert sorted(logged) == [0, 2, 4, STEPS]
    chosen = [score.logp for score in after if score.kind == "chosen"]
    assert logged[STEPS]["probe/chosen/logp"] == pytest.approx(sum(chosen) / len(chosen), abs=1e-4)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [2, 4]
    assert "Δ log π" in json.dumps(
        callback.figure().to_plotly_json(), default=str, ensure_ascii=False
    )


def test_a_new_run_replaces_the_old_one_s_rows(tmp_path: Path) -> None:
    for _ in range(2):
        trainer = plain(tmp_path)
        trainer.add_callback(ProbeCallback(trainer, probes(), every=STEPS))
        trainer.train()
    assert len(list(read_rows(tmp_path / "probes.jsonl", ProbeScore))) == 2 * len(probes())


def test_an_alarm_ends_a_trainer_where_the_gap_has_grown(tmp_path: Path) -> None:
    """DPO pushes down what is watched as chosen here: the pairs' rejected answers."""
    watched = [
        probe.model_copy(update={"kind": "chosen"})
        for probe in probes()
        if probe.kind == "rejected"
    ]
    quiet = dpo(tmp_path / "quiet")
    quiet.add_callback(ProbeCallback(quiet, watched, every=1))
    quiet.train()
    gaps = [line["squeeze/gap"] for line in quiet.state.log_history if "squeeze/gap" in line]
    assert len(gaps) == STEPS + 1
    rise = (max(gaps[:2]) + gaps[2]) / 2 - gaps[0]
    assert gaps[2] > max(gaps[:2])
    trainer = dpo(tmp_path / "alarmed")
    callback = ProbeCallback(trainer, watched, every=1, alarm=AlarmConfig(rise=rise))
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.global_step == 2
    assert callback.alarm is not None and callback.alarm.ring is not None
    assert callback.alarm.ring.step == 2
    with pytest.raises(ConfigError, match="alarm"):
        ProbeCallback(trainer, probes()[1:2], alarm=AlarmConfig(rise=1.0))


def test_what_cannot_be_probed_is_refused_at_once(tmp_path: Path) -> None:
    trainer = plain(tmp_path)
    with pytest.raises(ConfigError, match="every"):
        ProbeCallback(trainer, probes(), every=0)
    with pytest.raises(ConfigError, match="rows"):
        ProbeCallback(trainer, [])
    trainer.processing_class = None
    with pytest.raises(ConfigError, match="processing_class"):
        ProbeCallback(trainer, probes())


def test_the_library_itself_imports_no_trainer() -> None:
    code = "import sys, dynolab, dynolab.probes.score; print('transformers.trainer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Mirrored(torch.optim.SGD):
    """Evaluates other weights than it trains, as schedule-free ones do: mirrored at the first."""

    is_training = True

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        assert self.is_training
        for weight in self.weights():
            self.state[weight].setdefault("first", weight.detach().clone())
        return super().step(closure)

    def train(self) -> None:
        self.switch(True)

    def eval(self) -> None:
        self.switch(False)

    @torch.no_grad()
    def switch(self, to_training: bool) -> None:
        if to_training != self.is_training:
            for group in self.param_groups:
                group["train_mode"] = to_training
            self.is_training = to_training
            for weight in self.weights():
                if "first" in self.state[weight]:
                    weight.lerp_(self.state[weight]["first"], 2)

    def weights(self) -> list[torch.Tensor]:
        return [weight for group in self.param_groups for weight in group["params"]]


def test_the_weights_that_an_optimizer_evaluates_are_probed(tmp_path: Path) -> None:
    ends = []
    for name in ("alone", "probed"):
        trainer = dpo(tmp_path / name)
        assert trainer.model is not None
        trainer.optimizer = Mirrored(trainer.model.parameters(), lr=0.02)
        if name == "probed":
            trainer.add_callback(callback := ProbeCallback(trainer, every=1, pairs=8))
        trainer.train()
        ends.append([p.detach().clone() for p in trainer.model.parameters()])
    assert not callback.off
    assert all(map(torch.equal, *ends))
    last = [line for line in trainer.state.log_history if "probe/chosen/logp" in line][-1]
    evaluated = trainer.evaluate(trainer.train_dataset)["eval_logps/chosen"]  # type: ignore[arg-type]
    assert last["probe/chosen/logp"] == pytest.approx(evaluated, abs=1e-3)


def test_probes_keep_to_their_share_and_go_on_after_a_kill(tmp_path: Path) -> None:
    trainer = dpo(tmp_path)
    trainer.add_callback(callback := ProbeCallback(trainer, pairs=2, share=1e-9))
    trainer.train()
    steps = [row.step for row in read_rows(callback.file, ProbeScore)]
    assert sorted(set(steps)) == [0, STEPS]
    with callback.file.open("a") as file:
        file.write('{"step": 3, "pair')
    callback._begin(STEPS)
    rows = list(read_rows(callback.file, ProbeScore))
    assert {row.step for row in rows} == {0}
