"""Analyses whose weights wait in main memory, by the bytes on a GPU: part of `sharded`.

    python -m tests.benchmarks.streamed

In a process of its own, whose GPU is pretended. DPO on 160M weights, rows of up to 72 tokens. Keys:

- `streamed_forces_over_training`, `…_audit_…`, `…_ledger_…`: most bytes of tensors on the GPU, over
  the training's, without records.
- `streamed_plan_error`: the largest relative error of `--plan` of these three.
"""

from __future__ import annotations

import gc
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from dynolab.audit.audit import audit_pairs
from dynolab.costs.machines import Machine
from dynolab.costs.traced import LiveBytes
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows
from dynolab.data.sources.load import DataConfig
from dynolab.forces import PolicyFunction, step_forces
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import kind_means
from dynolab.forces.ledger.responses import example_pushes, gradients_of
from dynolab.objectives import build_objective
from dynolab.training.config import TrainConfig
from flows.costs import Costs, Inputs
from models.language import load_language_model, load_tokenizer
from tasks.audit import AuditJob
from tasks.base import BaseConfig
from tasks.forces import ForcesConfig
from tasks.ledger import LedgerJob
from tests.benchmarks.long_pairs import PAIRS, TOKENS, write_long_pairs
from tests.benchmarks.pythia import PYTHIA_160M, pythia
from tests.gpu.pretended import GPU, PretendedTensor, machine_with_gpu
from tests.training.small import make_job, run, settings, step_record

SMALL_GPU = Machine("small", 1, 1, 2**40, 1e13, 1e14, "has no room for any copy")


def config_of(**changes: Any) -> TrainConfig:
    """Two steps of DPO on all weights."""
    return settings(
        engine={"kind": "plain", "ranks": 1},
        steps=2,
        probe_every=0,
        checkpoint_every=0,
        warmup_steps=0,
        batch_size=PAIRS,
        micro_batch_size=2,
        **changes,
    )


def measured(home: Path) -> dict[str, float]:
    """What analyses take on the GPU, beside the training's bytes and their own plans."""
    probes = write_long_pairs(home, pythia(**PYTHIA_160M | {"vocab_size": 13_056}))
    plain = make_job(home, home / "plain", config_of(record_steps=[]))
    with LiveBytes() as live:
        run(plain)
    training = live.most
    config = config_of(record_steps=[0, 1])
    job = run(make_job(home, home / "trained", config))
    encoder = Encoder(load_tokenizer(job.model), 2048, "error")
    pairs = encoder.examples(list(read_rows(job.examples, Example)))[:PAIRS]
    watched = [own for _, own in kind_means(probes, encoder, PAIRS)]
    with machine_with_gpu():
        policy = PolicyFunction(load_language_model(job.output / "model"), device=GPU)

        def forces() -> None:
            record = step_record(job, 1)
            made = step_forces(record, policy, probes, encoder, stage="dpo", batch_tokens=TOKENS)
            gradients, chosen = gradients_of(record, policy), [pair.chosen for pair in pairs]
            example_pushes(record, gradients, made.update, chosen, batch_tokens=TOKENS)

        def audit() -> None:
            objective: Any = build_objective(config.objective)
            audit_pairs(policy, pairs, objective, batch_tokens=TOKENS)

        def ledger() -> None:
            waiting = home / "waiting"
            account = Ledger(policy, watched, batch_tokens=TOKENS, waiting=waiting, memory_bytes=1)
            for step in (1, 0):
                account.enter(step_record(job, step))

        took = [most_on_gpu(work) for work in (forces, audit, ledger)]
    costs = Costs(
        Inputs(
            BaseConfig(source=str(home / "model")),
            DataConfig(source="file", path=str(home / "train.jsonl"), heldout_rows=0),
        ),
        SMALL_GPU,
    )
    options: dict[str, Any] = {"batch_tokens": TOKENS}
    plans = [
        costs.analysis("forces", ForcesConfig(**options), [config], config),
        costs.analysis("audit", AuditJob(objective=config.objective, **options), [config]),
        costs.ledger(LedgerJob(training=config, pairs=PAIRS, **options)),
    ]
    names = ("forces", "audit", "ledger")
    over_training = {
        f"streamed_{name}_over_training": most / training
        for name, most in zip(names, took, strict=True)
    }
    took = [*took[:2], max(took[2], training)]  # a ledger trains again
    errors = [plan.rank_bytes / most - 1 for plan, most in zip(plans, took, strict=True)]
    return {
        **over_training,
        "streamed_plan_error": max(map(abs, errors)),
    }


def most_on_gpu(work: Callable[[], object]) -> int:
    """Bytes of tensors at once, also of what hooks make in a backward pass."""
    gc.collect()
    live, make = LiveBytes(), PretendedTensor.__new__

    def counted(cls: type[PretendedTensor], values: Tensor) -> PretendedTensor:
        live.count(values.untyped_storage())
        return make(cls, values)

    with patch.object(PretendedTensor, "__new__", staticmethod(counted)):
        work()
    return live.most


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measured(Path(folder))))
