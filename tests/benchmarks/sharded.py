"""Accounts of trainings whose models are large: how far they close in bf16.

    python -m tests.benchmarks.sharded

Prints one JSON object on its last line, over SFT and DPO × SGD with momentum and AdamW, 12 steps of
a tiny model each, every step accounted for:

- `bf16_closure`: largest |Σ lines + rounding + residual − measured| over a functional's path.
- `bf16_arithmetic_share`: largest |Σ rounding| over it, and `_SFT`, `_DPO` of either loss.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dynolab.forces import PolicyFunction
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.results.ledger import LedgerSummary
from models.language import load_language_model
from tests.benchmarks.figures import report
from tests.training.small import make_files, run_small, settings, step_record

STEPS = 12
OPTIMIZERS = {
    "sgd": {"name": "sgd", "learning_rate": 1e-2, "momentum": 0.9},
    "adamw": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1},
}


def account(home: Path, objective: str, optimizer: str) -> LedgerSummary:
    """How well the account of a training in bf16 closes."""
    config = settings(
        objective={"name": objective},
        optimizer=OPTIMIZERS[optimizer],
        engine={"kind": "plain", "ranks": 1, "dtype": "bf16"},
        steps=STEPS,
        record_steps=list(range(STEPS)),
        probe_every=0,
    )
    job = run_small(home, home / f"{objective}-{optimizer}", config)
    answers = [example.chosen for example in step_record(job, 0).examples]
    mean = Functional.mean("chosen", answers)
    singles = [Functional.mean(f"chosen-{n}", [own]) for n, own in enumerate(answers)]
    ledger = Ledger(PolicyFunction(load_language_model(home / "model")), [mean, *singles])
    tables = LedgerTables([mean.name, *(single.name for single in singles)])
    for step in reversed(range(STEPS)):
        tables.add(ledger.enter(step_record(job, step)))
    return tables.summary()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        accounts = {
            objective: [account(Path(folder), objective, name) for name in OPTIMIZERS]
            for objective in ("sft", "dpo")
        }
    shares = {o: max(own.rounding_share for own in each) for o, each in accounts.items()}
    figures = {
        "bf16_closure": max(own.closure for each in accounts.values() for own in each),
        "bf16_arithmetic_share": max(shares.values()),
        **{f"bf16_arithmetic_share_{o.upper()}": share for o, share in shares.items()},
    }
    report(figures, at_most={"bf16_closure": 1e-5})


if __name__ == "__main__":
    main()
