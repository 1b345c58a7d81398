"""Accounts of trainings whose gradients and optimizer states ZeRO splits over ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from tests.integrations.forces_zero import CASES
from tests.integrations.test_trained import SGD, check_same, dpo
from tests.torchrun import run_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("zero")
    module = "tests.integrations.forces_zero"
    own = {"TORCHDYNAMO_DISABLE": "1"}  # DeepSpeed would load torch's compiler for nothing
    run_ranks(module, folder, 2, DS_BUILD_OPS="0", DS_ACCELERATOR="cpu", **own)
    return folder


def ledger(trained: Path, case: str) -> LedgerReader:
    folder = trained / case / "watched" / "ledger"
    return read_ledger(folder, folder)


def test_ranks_with_zero_account_for_what_one_process_does(trained: Path, tmp_path: Path) -> None:
    trainer = dpo(tmp_path, per_device_train_batch_size=4, max_steps=2, **SGD)
    trainer.add_callback(forces := ForceCallback(trainer, every=1))
    trainer.train()
    alone = read_ledger(forces.folder, forces.folder)
    for case in ("stage-1", "stage-2", "accumulated", "stage-3"):
        check_same(alone, ledger(trained, case), 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_parts_of_a_step_with_zero_add_up(trained: Path, case: str) -> None:
    accounts = ledger(trained, case).accounts
    assert len(accounts) == 2
    for account in accounts:
        # Rounding is of the step as it was, whose shares are larger than the lines.
        most = 5e-3 * account.length if "bf16" in case else 1e-5
        assert abs(account.unexplained) + abs(account.arithmetic) < most
        assert abs(account.lines).sum() < 100  # nats


@pytest.mark.parametrize("case", [*CASES, "failed"])
def test_weights_are_those_of_a_training_without_the_callback(trained: Path, case: str) -> None:
    watched, alone = (
        load_file(next((trained / folder / "model").glob("*.safetensors")))
        for folder in (f"{case}/watched", f"{case.replace('failed', 'stage-2')}/alone")
    )
    assert watched.keys() == alone.keys()
    assert all(torch.equal(watched[name], alone[name]) for name in alone)
