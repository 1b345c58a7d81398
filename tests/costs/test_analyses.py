"""Analyses of a model whose weights outweigh its activations hold the copies that plans count."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from dynolab.audit.audit import audit_pairs
from dynolab.costs.memory import FP32, ledger_copies, recorded_states
from dynolab.costs.shape import ModelShape, shape_of
from dynolab.costs.traced import LiveBytes
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.forces import (
    PolicyFunction,
    step_forces,
)
from dynolab.forces.function import weights
from dynolab.forces.ledger import step_account
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.watched import kind_means
from dynolab.objectives.dpo import DPO, DPOConfig
from dynolab.squeezing.forecast import forecasts
from dynolab.squeezing.ladder import ladder
from dynolab.training.job import TrainJob
from models.language import load_language_model, load_tokenizer
from tasks import audit, forces as forces_stage, study_squeezing
from tests.benchmarks.models import pythia
from tests.training.small import make_files, make_job, make_tokenizer, run, settings, step_record

PAIRS = 2


@dataclass(frozen=True)
class Trained:
    """A training of three recorded steps, and what it read."""

    job: TrainJob
    shape: ModelShape

    def planned(self, copies: int) -> int:
        """Bytes of copies of the weights and of what a record has of the optimizer."""
        return (copies + recorded_states(self.job.config.optimizer)) * FP32 * self.shape.parameters

    @property
    def encoder(self) -> Encoder:
        return Encoder(load_tokenizer(self.job.model), 48, "drop")

    @property
    def probes(self) -> list[ProbeRow]:
        assert self.job.probes is not None
        return list(read_rows(self.job.probes, ProbeRow))

    def policy(self) -> PolicyFunction:
        return PolicyFunction(load_language_model(self.job.model))


@pytest.fixture(scope="module", params=["adamw"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("trained")
    make_files(folder)
    for file in (folder / "model").iterdir():
        file.unlink()
    model = pythia(vocab_size=512, hidden_size=192, num_hidden_layers=3, intermediate_size=768)
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    config = settings(
        optimizer={"name": request.param, "learning_rate": 1e-5},
        steps=3,
        record_steps=[0, 1, 2],
        batch_size=PAIRS,
        micro_batch_size=PAIRS,
        probe_every=0,
        checkpoint_every=0,
        warmup_steps=0,
    )
    yield Trained(run(make_job(folder, folder, config)), shape_of(model))


def most_bytes(work: Callable[[], object], dtype: torch.dtype | None = None) -> int:
    gc.collect()
    with LiveBytes(dtype=dtype) as live:
        work()
    return live.most


def test_an_audit(trained: Trained) -> None:
    pairs = trained.encoder.examples(list(read_rows(trained.job.examples, Example)))
    most = most_bytes(lambda: audit_pairs(trained.policy(), pairs[:PAIRS], DPO(DPOConfig())))
    assert most == pytest.approx(audit.COPIES.host * FP32 * trained.shape.parameters, rel=0.15)


@pytest.fixture
def one_direction_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a model whose weights are larger than what directions may take together."""
    monkeypatch.setattr("dynolab.forces.function.policy._TANGENT_BYTES", 0)


@pytest.mark.usefixtures("one_direction_at_a_time")
def test_forces_of_a_step(trained: Trained) -> None:
    first = step_record(trained.job, 0).before

    def forces() -> None:
        record, policy = step_record(trained.job, 1), trained.policy()
        rows, encoder = trained.probes, trained.encoder
        step_forces(record, policy, rows, encoder, stage="dpo", batch_tokens=256)

    held = sum(w.nbytes for w in first.values())
    planned = trained.planned(forces_stage.COPIES.host)
    assert most_bytes(forces) + held == pytest.approx(planned, rel=0.1)


def test_squeezing(trained: Trained) -> None:
    def measured() -> None:
        record, policy = step_record(trained.job, 1), trained.policy()
        start = load_language_model(trained.job.model)
        forecasts(record, policy, training="dpo")
        ladder(record, policy, training="dpo")
        del start

    assert most_bytes(measured) == pytest.approx(
        trained.planned(study_squeezing.COPIES.host), rel=0.1
    )


def test_a_ledger(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One functional at a time, as many as a plan counts."""
    for module in (step_account, weights):
        monkeypatch.setattr(module, "SLICE", 2**14)  # small beside these weights, too
    functionals = [own for _, own in kind_means(trained.probes, trained.encoder, PAIRS)]

    def account() -> None:
        ledger = Ledger(
            trained.policy(),
            functionals,
            batch_tokens=256,
            by_token=[0],
            waiting=tmp_path / "waiting",
            memory_bytes=1,
        )
        for step in (2, 1):
            ledger.enter(step_record(trained.job, step), gap=1)

    optimizer = trained.job.config.optimizer
    copies = ledger_copies(optimizer, functionals=1, responses=2 * PAIRS) + 1
    planned = copies * FP32 * trained.shape.parameters
    assert most_bytes(account) == pytest.approx(planned, rel=0.1)
