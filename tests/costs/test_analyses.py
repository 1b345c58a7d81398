"""Analyses of a model whose weights outweigh its activations hold the copies that plans count."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from dynolab.audit.audit import audit_pairs
from dynolab.costs.analyses import (
    audit_bytes,
    forces_bytes,
    kernel_bytes,
    ledger_bytes,
    squeezing_bytes,
)
from dynolab.costs.live_bytes import LiveBytes
from dynolab.costs.shape import ModelShape, shape_of
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.forces import (
    PolicyFunction,
    split_step,
    step_forces,
    step_layers,
    step_validity,
)
from dynolab.forces.kernel.size import kernel_sizes
from dynolab.forces.ledger import step_account
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.watched import kind_means
from dynolab.forces.step.token_map import example_pushes, token_forces
from dynolab.objectives.dpo import DPO, DPOConfig
from dynolab.squeezing.forecast import forecasts
from dynolab.squeezing.ladder import ladder
from dynolab.training.job import TrainJob
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.pythia import pythia
from tests.training.small import make_files, make_job, make_tokenizer, run, settings, step_record

PAIRS = 2


@dataclass(frozen=True)
class Trained:
    """A training of three recorded steps, and what it read."""

    job: TrainJob
    shape: ModelShape

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
    assert most == pytest.approx(audit_bytes(trained.shape), rel=0.15)


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

    planned = forces_bytes(trained.shape, trained.job.config.optimizer)
    held = sum(w.nbytes for w in first.values())
    assert most_bytes(forces) + held == pytest.approx(planned.together, rel=0.1)


@pytest.mark.usefixtures("one_direction_at_a_time")
def test_forces_on_a_device_of_their_own(trained: Trained) -> None:
    """A policy in float64 copies what it takes of a record in float32, as one on a GPU does."""
    record, rows, encoder = step_record(trained.job, 1), trained.probes, trained.encoder
    watched = encoder.response("0", rows[0].prompt, rows[0].response)
    assert watched is not None

    def pushes(policy: PolicyFunction) -> None:
        scale = replace(split_step(record, policy, batch_tokens=1).update, history={})
        example_pushes(record, policy, scale, watched, batch_tokens=1)
        token_forces(record, policy, scale, 0, watched)

    def most(work: Callable[[PolicyFunction], object]) -> int:
        model = load_language_model(trained.job.model)
        return most_bytes(lambda: work(PolicyFunction(model, torch.float64)), torch.float64)

    def measured(by: Callable[..., object]) -> int:
        return most(lambda policy: by(record, policy, rows, encoder, stage="dpo", batch_tokens=1))

    copy = 8 * trained.shape.parameters
    parts = 3 * copy  # they wait in main memory
    largest = max(
        measured(step_forces) - parts, measured(step_layers), measured(step_validity), most(pushes)
    )
    planned = forces_bytes(trained.shape, trained.job.config.optimizer).device
    assert largest == pytest.approx(2 * planned, rel=0.1)


def test_squeezing(trained: Trained) -> None:
    def measured() -> None:
        record, policy = step_record(trained.job, 1), trained.policy()
        start = load_language_model(trained.job.model)
        forecasts(record, policy, training="dpo")
        ladder(record, policy, training="dpo")
        del start

    planned = squeezing_bytes(trained.shape, trained.job.config.optimizer)
    assert most_bytes(measured) == pytest.approx(planned, rel=0.1)


def test_a_kernel(trained: Trained) -> None:
    rows = trained.encoder.examples(list(read_rows(trained.job.examples, Example)))[:PAIRS]
    answers = [row.chosen for row in rows]
    memory = 2**22  # the longest answer's images, and little beside these weights
    planned = kernel_bytes(trained.shape, memory)
    most = most_bytes(lambda: kernel_sizes(trained.policy(), answers, answers, memory_bytes=memory))
    assert 0.7 * planned < most <= planned


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("at_once", [1, None])
def test_a_ledger(
    trained: Trained,
    whole: bool,
    at_once: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All functionals at once, and one after another."""
    monkeypatch.setattr(step_account, "SLICE", 2**14)  # small beside these weights, too
    rows = kind_means(trained.probes, trained.encoder, PAIRS)
    waiting = tmp_path / "waiting"

    def account() -> None:
        ledger = Ledger(
            trained.policy(),
            [q for _, q in rows],
            batch_tokens=256,
            by_token=[0],
            whole=whole,
            waiting=waiting,
            memory_bytes=1 if at_once else 2**40,
        )
        for step in (2, 1) if whole else (2, 0):
            ledger.enter(step_record(trained.job, step), gap=1 if whole else 2)

    planned = ledger_bytes(
        trained.shape,
        trained.job.config.optimizer,
        functionals=len(rows),
        responses=2 * PAIRS,
        whole=whole,
        memory=1 if at_once else 2**40,
    )
    assert most_bytes(account) == pytest.approx(planned.work, rel=0.1)
    written = sum(file.stat().st_size for file in waiting.glob("*"))
    assert written == pytest.approx(planned.waiting, rel=0.01)
