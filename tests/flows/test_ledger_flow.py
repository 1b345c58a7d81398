"""The ledger of a training as a stage: replayed, written, resumed, refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.entries import StepAccount
from dynolab.objectives import DPOConfig
from dynolab.results.ledger import TABLES, FunctionalRow, StepLine, read_table
from dynolab.results.ledger_reader import read_ledger
from dynolab.results.study import MetricsLine
from dynolab.training.config import (
    GroupTrainConfig,
    LoraConfig,
    OptimizerConfig,
    TrainConfig,
)
from dynolab.training.step_record import StepRecord
from flows.flow import Plan
from flows.ledger import FLOW
from tasks import training as training_stage
from tasks.data import PROMPTS
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.stage import run_stage
from tasks.runtime.work import StageResult
from tasks.training import COPIES, GROUP, PREFERENCE, STEPS
from tests.flows.analysed import PLAIN, WORLD, Analysed
from tests.flows.in_process import short, step_names
from tests.training.interrupted import Died, Mortal

Trained = tuple[TrainConfig, StageResult]
SGD = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1)
BF16 = PLAIN.model_copy(update={"dtype": "bf16"})


def trained(analysed: Analysed, **changes: Any) -> Trained:
    """A preference training with a warm-up on the small store."""
    settings = {"objective": DPOConfig(), "optimizer": SGD, "engine": PLAIN, "steps": 6}
    more = {"batch_size": 4, "warmup_steps": 2, "probe_every": 3, **changes}
    config = TrainConfig(**{**settings, **more})
    return config, analysed.run(PREFERENCE, config, data=analysed.data, model=analysed.sft)


def ledger(
    analysed: Analysed,
    training: TrainConfig,
    result: StageResult,
    *,
    fresh: bool = False,
    **changes: Any,
) -> StageResult:
    """The account of a training; `fresh`: kept again if there is one."""
    config = LedgerJob(
        training=training, **{"pairs": 2, "answers": 3, "heldout_answers": 1, **changes}
    )
    inputs = {"data": analysed.data, "model": analysed.sft, "trained": result}
    return run_stage(LEDGER, config, inputs, analysed.platform, fresh=fresh)


@pytest.fixture(scope="module")
def dpo(analysed: Analysed) -> Trained:
    return trained(analysed, keep_steps=True)


@pytest.mark.parametrize(
    "changes",
    [{"optimizer": OptimizerConfig(name="adamw", epsilon=1e-6)}, {"lora": LoraConfig(rank=2)}],
    ids=["adamw", "sgd on adapters"],
)
def test_a_ledger_closes(analysed: Analysed, changes: dict[str, Any]) -> None:
    training, result = trained(analysed, **changes)
    account = ledger(analysed, training, result)
    assert account.metrics["ledger/steps"] == 6
    assert account.metrics["ledger/closure"] < 1e-5
    folder = analysed.folder(account)
    functionals = analysed.rows(account, "functionals.jsonl", FunctionalRow)
    lines = read_table(folder, "lines")
    assert set(lines["functional"]) == {row.name for row in functionals}
    assert set(lines["step"]) == set(range(6))
    responses = read_table(folder, "responses")
    assert set(responses["side"]) == {"chosen", "rejected"}
    sources = read_table(folder, "sources")
    assert len(sources["step"]) == 6 * (3 + 1)
    assert [row.split for row in functionals if row.single] == ["train"] * 3 + ["heldout"]
    assert all(value >= 0 for value in sources["lbk"])


def test_without_measures_a_ledger_has_the_key_of_before() -> None:
    written = LedgerJob(training=TrainConfig(objective=DPOConfig())).model_dump()
    assert not {"measures", "rewards"} & written.keys()


@pytest.mark.study
def test_a_bf16_training_that_died_has_the_account_of_one_that_did_not(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes with what rounding did."""
    settings = {"engine": BF16, "optimizer": ADAMW, "checkpoint_every": 2, "seed": 3}
    with monkeypatch.context() as patch:
        patch.setattr(training_stage, "run", lambda job: Mortal(job, 4).run())
        with pytest.raises(Died):
            trained(analysed, **settings)
    training, resumed = trained(analysed, **settings)
    assert resumed.metrics["resumed_from"] == 2
    small = two_steps_of_records(analysed)
    account = ledger(analysed, training, resumed, disk_bytes=small)
    assert account.metrics["ledger/closure"] < 1e-5
    assert 1e-4 < account.metrics["ledger/rounding_share"] < 0.05
    inputs = {"data": analysed.data, "model": analysed.sft}
    whole = run_stage(PREFERENCE, training, inputs, analysed.platform, fresh=True)
    again = ledger(analysed, training, whole)
    assert tables(analysed, again) == tables(analysed, account)


def tables(analysed: Analysed, account: StageResult) -> dict[str, Any]:
    return {name: read_table(analysed.folder(account), name) for name in TABLES}


def two_steps_of_records(analysed: Analysed) -> int:
    """Bytes of disk that hold the records of two steps and no third."""
    model = analysed.folder(analysed.sft, "model")
    return 2 * COPIES * sum(file.stat().st_size for file in model.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("spacing", "expected"),
    [(1, [5, 4, 3, 2, 3, 2, 1, 0]), (3, [5, 4, 3, 2, 2, 1, 0])],
    ids=["every step", "spaced"],
)
def test_a_ledger_that_was_ended_goes_on_in_segments_with_the_account_of_a_whole_one(
    analysed: Analysed,
    dpo: Trained,
    spacing: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The first replays the training in segments; the whole one reads the steps that it kept."""
    training, result = dpo
    kept = analysed.platform.settings.cache / STEPS / result.stage / result.key
    assert len(list(kept.glob("step-*"))) == training.steps
    copy = shutil.copytree(kept, tmp_path / "copy")
    aside = kept.rename(kept.with_name("aside"))
    entered: list[int] = []
    enter = Ledger.enter

    def ended(self: Ledger, record: StepRecord, **settings: Any) -> StepAccount:
        entered.append(record.facts.step)
        if len(entered) == 4:
            raise KeyboardInterrupt
        return enter(self, record, **settings)

    monkeypatch.setattr(Ledger, "enter", ended)
    settings = {"disk_bytes": two_steps_of_records(analysed), "slopes_every": spacing}
    with pytest.raises(KeyboardInterrupt):
        ledger(analysed, *dpo, **settings)
    resumed = tables(analysed, ledger(analysed, *dpo, **settings))
    assert entered == expected
    aside.rename(kept)
    again = ledger(analysed, *dpo, fresh=True, slopes_every=spacing)
    assert tables(analysed, again) == resumed
    assert not kept.exists()
    # Another case begins with what the training kept.
    shutil.copytree(copy, kept)


@pytest.fixture(scope="module")
def grpo(analysed: Analysed) -> StageResult:
    """A training on groups that watches the data's answers."""
    config = GroupTrainConfig(
        rewards=({"name": "tests.training.rewards.some_words"},),
        engine=PLAIN,
        optimizer=SGD,
        steps=3,
        batch_size=4,
        completions=4,
        max_new_tokens=4,
        temperature=1.3,
        probe_every=3,
    )
    prompts = analysed.run(PROMPTS, DataConfig(world=WORLD))
    return analysed.run(GROUP, config, prompts=prompts, data=analysed.data, model=analysed.sft)


def test_slopes_in_some_of_the_drawn_steps_are_refused() -> None:
    training = TrainConfig(objective=DPOConfig())
    with pytest.raises(
        ConfigError, match=r"slopes_every = 3: needs every step; set slopes_every: 1"
    ):
        LedgerJob(training=training, every=2, slopes_every=3)


def test_what_is_measured_at_answers_has_accounts_of_both_splits(
    analysed: Analysed, dpo: Trained
) -> None:
    training, result = dpo
    measures = ("entropy", "kl", "margin")
    account = ledger(
        analysed, training, result, measures=measures, rewards=({"name": "word_overlap"},)
    )
    assert account.metrics["ledger/closure"] < 1e-5
    read = read_ledger(analysed.folder(account), analysed.folder(analysed.data))
    accounts = {account.row.name: account for account in read.accounts}
    for split in ("train", "heldout"):
        assert {f"{split}/{kind}" for kind in (*measures, "reward")} <= accounts.keys()
        assert accounts[f"{split}/kl"].start == pytest.approx(0, abs=1e-6)
    # Nothing bounds them: to leave a pair out changes them by minus its lines.
    change = read.without([read.examples[0]], refilled=False)["train/entropy"]
    pushed = read.by_example(accounts["train/entropy"].lines)[0]
    assert change == pytest.approx(-pushed) and change != 0
    rises = accounts["train/chosen"].end - accounts["train/chosen"].start
    falls = accounts["train/rejected"].end - accounts["train/rejected"].start
    margin = accounts["train/margin"].end - accounts["train/margin"].start
    assert margin == pytest.approx(rises - falls, abs=1e-4)


def test_the_flow_finds_what_a_training_on_groups_read(
    analysed: Analysed, grpo: StageResult
) -> None:
    plan = planned(analysed, trained=short(grpo))
    assert step_names(plan) == ["ledger", "ledger-page"]
    assert plan.steps[0].inputs.keys() == {"trained", "data", "model", "prompts"}
    results = analysed.run_plan(plan)
    assert results["ledger"].metrics["ledger/closure"] < 1e-5
    responses = read_table(analysed.folder(results["ledger"]), "responses")
    assert set(responses["side"]) == {"chosen", "rejected"}
    assert max(responses["response"]) >= 4
    assert 'id="pushers"' in analysed.text(results["ledger-page"], "ledger.html")
    assert results["ledger-page"].metrics["ledger/steps"] == 3


def planned(analysed: Analysed, **settings: Any) -> Plan:
    return analysed.plan(FLOW, analysed.named({"ledger": {"pairs": 1, "answers": 1}, **settings}))


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ("DATA", "is a result of stage data; give one of sft, preference, group"),
        ("sft/0123456789ab", "is not in the store"),
        ("sft", "run the study first"),
    ],
)
def test_what_is_no_training_is_refused(analysed: Analysed, trained: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(analysed, trained=trained)


IN_RUN = {"every": 2, "kinds": ("chosen", "argmax"), "pairs": 2}


def test_a_ledger_in_the_run_changes_no_weight_and_adds_up(
    analysed: Analysed, dpo: Trained
) -> None:
    plain = analysed.folder(dpo[1], "model") / "model.safetensors"
    _, watched = trained(analysed, ledger=IN_RUN)
    folder = analysed.folder(watched)
    assert (folder / "model" / "model.safetensors").read_bytes() == plain.read_bytes()
    lines = analysed.rows(watched, "ledger.jsonl", StepLine)
    assert {line.step for line in lines} == {0, 2, 4}
    assert {line.functional for line in lines} == {"chosen", "argmax"}
    logged = analysed.rows(watched, "metrics.jsonl", MetricsLine)
    metrics = {line.step: line.metrics for line in logged if "train/loss" in line.metrics}
    for step in (0, 2, 4):
        own = metrics[step + 1]
        parts = ("chosen", "rejected", "together", "momentum", "decay", "arithmetic", "residual")
        total = sum(own[f"ledger/chosen/{part}"] for part in parts)
        assert total == pytest.approx(own["ledger/chosen/measured"], abs=1e-7)
        mine = [
            line.nats
            for line in lines
            if (line.step, line.functional, line.side) == (step, "chosen", "rejected")
        ]
        assert sum(mine) == pytest.approx(own["ledger/chosen/rejected"])
    assert "ledger/chosen/measured" not in metrics[2]


@pytest.mark.parametrize("more", [{}, {"engine": BF16, "lora": LoraConfig(rank=2)}])
def test_a_ledger_in_the_run_says_what_a_whole_one_says_of_a_step_alone(
    analysed: Analysed, more: dict[str, Any]
) -> None:
    """Without momentum a line acts in its own step alone."""
    plain = {"optimizer": SGD.model_copy(update={"momentum": 0.0}), "steps": 3, **more}
    training, result = trained(
        analysed, ledger={"every": 1, "kinds": ("chosen",), "pairs": 2}, **plain
    )
    table = read_table(analysed.folder(ledger(analysed, training, result)), "lines")
    whole = {
        (step, response): nats
        for step, response, functional, nats in zip(
            *(table[name] for name in ("step", "response", "functional", "nats")), strict=True
        )
        if functional == "train/chosen"
    }
    lines = analysed.rows(result, "ledger.jsonl", StepLine)
    assert {(line.step, line.response) for line in lines} == set(whole)
    for line in lines:
        assert line.nats == pytest.approx(whole[line.step, line.response], rel=1e-3, abs=1e-7)


def test_a_kind_that_is_not_watched_is_refused_before_training(analysed: Analysed) -> None:
    with pytest.raises(ConfigError, match=r"ledger\.kinds = 'said': no watched training answer"):
        trained(analysed, ledger={"kinds": ("said",)})
