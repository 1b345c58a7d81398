"""Watched trainings over ranks that each hold all weights, or among which FSDP2 splits them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dynolab.data.encode import Encoder
from dynolab.data.rows import read_rows
from dynolab.integrations.forces import ForceCallback
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.study import ProbeScore
from tests.integrations.callback_fsdp import CASES, FEW, OTHERS
from tests.integrations.test_callback import STEPS, probes
from tests.integrations.test_trained import SGD, account, check_same, dpo
from tests.torchrun import run_ranks
from tests.training.small import make_policy, make_tokenizer

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    run_ranks("tests.integrations.callback_fsdp", folder, 2, ACCELERATE_USE_CPU="true")
    return folder


def ledger(trained: Path, case: str) -> LedgerReader:
    folder = trained / case / "watched" / "ledger"
    return read_ledger(folder, folder)


@pytest.mark.parametrize("case", [*OTHERS, *CASES])
def test_weights_are_those_of_a_training_without_callbacks(trained: Path, case: str) -> None:
    watched, alone = (
        load_file(next((trained / case / name / "model").glob("*.safetensors")))
        for name in ("watched", "alone")
    )
    assert watched.keys() == alone.keys()
    assert all(torch.equal(watched[name], alone[name]) for name in alone)


def test_probes_are_those_of_the_saved_model(trained: Path) -> None:
    rows = list(read_rows(trained / "plain" / "watched" / "probes.jsonl", ProbeScore))
    model = AutoModelForCausalLM.from_pretrained(trained / "plain" / "watched" / "model")
    encoder = Encoder(make_tokenizer(), 48, "error")
    scores = score_probes(ResponseLogits(model), probes(), encoder, batch_tokens=1000)
    last = [row.logp for row in rows if row.step == STEPS]
    assert last == pytest.approx([score.logp for score in scores], abs=1e-4)
    assert {row.step for row in rows} == {*range(0, STEPS, 2), STEPS}


@pytest.mark.parametrize("case", ["sgd", "accumulated", "tied"])
def test_ranks_account_for_what_one_process_does(trained: Path, case: str, tmp_path: Path) -> None:
    settings = {"per_device_train_batch_size": 4} | CASES[case]
    settings["per_device_train_batch_size"] //= settings.get("gradient_accumulation_steps", 1)
    trainer = dpo(tmp_path, max_steps=2, **settings)
    watching = FEW if case == "tied" else {}
    trainer.add_callback(forces := ForceCallback(trainer, every=1, **watching))
    trainer.train()
    check_same(account(forces), ledger(trained, case), 2e-6)


@pytest.mark.parametrize("case", [*OTHERS, *CASES])
def test_the_parts_of_a_step_add_up(trained: Path, case: str) -> None:
    accounts = ledger(trained, case).accounts
    assert len(accounts) == (1 if case == "tied" else 2)
    for own in accounts:
        most = 1e-3 * abs(own.lines).sum() if case == "bf16" else 1e-5
        assert abs(own.unexplained) + abs(own.arithmetic) < most


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    run_ranks("tests.integrations.callback_ddp", folder, 2)
    return folder


def test_ranks_share_the_rows_and_one_writes_them(copied: Path) -> None:
    folder = copied / "probed"
    rows = list(read_rows(folder / "probes.jsonl", ProbeScore))
    assert [row.step for row in rows] == [0] * len(probes()) + [STEPS] * len(probes())
    tokenizer = make_tokenizer()
    encoder = Encoder(tokenizer, 48, "error")
    ended = AutoModelForCausalLM.from_pretrained(folder / "model")
    for step, model in ((0, make_policy(tokenizer)), (STEPS, ended)):
        alone = score_probes(ResponseLogits(model), probes(), encoder, batch_tokens=1000)
        scores = [row for row in rows if row.step == step]
        assert [(score.pair_id, score.kind) for score in scores] == [
            (score.pair_id, score.kind) for score in alone
        ]
        logps = [score.logp for score in scores]
        assert logps == pytest.approx([score.logp for score in alone], abs=1e-4)


def test_two_ranks_account_for_what_one_process_does(copied: Path, tmp_path: Path) -> None:
    trainer = dpo(tmp_path, per_device_train_batch_size=4, max_steps=2, **SGD)
    trainer.add_callback(forces := ForceCallback(trainer, every=1))
    trainer.train()
    folder = copied / "accounted" / "ledger"
    check_same(account(forces), read_ledger(folder, folder), 1e-6)
