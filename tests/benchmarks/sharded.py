"""Accounts of trainings whose models are large: how they close in bf16, what adapters' ones take.

    python -m tests.benchmarks.sharded

Prints one JSON object on its last line. Over SFT and DPO × SGD with momentum and AdamW, 12 steps of
a tiny model each, every step accounted for:

- `bf16_closure`: largest |Σ lines + rounding + residual − measured| over a functional's path.
- `bf16_arithmetic_share`: largest |Σ rounding| over it, and `_SFT`, `_DPO` of either loss.

Over DPO on adapters of 160M weights in bf16, whose head and adapters have about the part of them
that those of 8B have, by the most bytes of tensors:

- `lora_forces_over_training`, `lora_ledger_over_training`: of a step's forces and of a ledger,
  over the training's.
- `lora_plan_error`: the largest relative error of `--plan` of these three.
- `lora_8b_on_24gb`: Llama-3-8B's training, forces and ledger fit a GPU of 24 GB by that plan, with
  rows of at most 192 tokens.

Over DPO on all weights, where these wait in main memory: the keys of `large`, and

- `8b_on_8_of_80gb`: a study of all weights of Llama-3-8B, with the forces of a step, fits by plan.

Over TRL's SFT and DPO × SGD with momentum and AdamW, accounted for by `ForceCallback` as
accelerate's configurations start them, on 2 ranks, and where weights are split on 4:

- `sharded_equals_whole`: largest difference of a line from one process's, over the sum of all
  lines' sizes.
- `accelerate_configs`: strategies of which all trainings were accounted for; `trainings_ended`:
  runs that failed.
- `callback_peak_over_training`: most memory of a rank's process under FSDP2, 160M weights, over
  that of the same training alone.

Over TRL's DPO with AdamW in one process, beside the same training alone:

- `callback_copies`: most bytes of tensors above that training's, in copies of the weights, of which
  accounts of two kinds hold five.
- `callback_share`: processor seconds of accounts over the share of the training's that they may
  take.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from transformers import Trainer

from dynolab.costs.traced import LiveBytes
from dynolab.forces import PolicyFunction
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger import LedgerSummary
from dynolab.results.ledger_reader import read_ledger
from models.language import load_language_model
from tests.benchmarks.figures import last_line, main
from tests.benchmarks.large import lora
from tests.benchmarks.models import PYTHIA_160M, pythia
from tests.benchmarks.sharded_ranks import MAKERS, STRATEGIES
from tests.flows.test_plan_costs import remedies
from tests.integrations.test_trained import dpo
from tests.torchrun import run_ranks
from tests.training.small import make_files, run_small, settings, step_record

STEPS = 12
SHARE = 0.1
SMALL = {
    "vocab_size": 5000,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
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


def split(home: Path) -> dict[str, Any]:
    """Accounts of trainings over ranks, beside those of one process."""
    home = home / "split"
    runs = [(strategy, 1 if strategy == "single" else 2) for strategy in STRATEGIES]
    runs += [("fsdp2", 4), ("zero3", 4)]
    apart, ended, accounted = 0.0, 0, set()
    for strategy, ranks in runs:
        try:
            started(home / f"{strategy}-{ranks}", ranks, strategy=strategy)
        except AssertionError as error:
            print(str(error)[-2000:], file=sys.stderr)
            ended += 1
            continue
        accounted.add(strategy)
        for case in (f"{objective}-{name}" for objective in MAKERS for name in OPTIMIZERS):
            whole, own = (
                read_ledger(folder, folder)
                for folder in (
                    home / at / case / "ledger" for at in ("single-1", f"{strategy}-{ranks}")
                )
            )
            for one, two in zip(whole.accounts, own.accounts, strict=True):
                lines = whole.by_example(one.lines), own.by_example(two.lines)
                assert sorted(whole.example) == sorted(own.example)
                size = float(abs(one.lines).sum())
                apart = max(apart, float(abs(lines[0] - lines[1]).max()) / size)
    pythia(**PYTHIA_160M).save_pretrained(home / "large")
    took = []
    for watched in (False, True):
        folder = home / f"large-{watched}"
        started(folder, 2, strategy="fsdp2", large=str(home / "large"), watched=watched)
        took.append(max(float(file.read_text()) for file in folder.glob("took-*")))
    return {
        "sharded_equals_whole": apart,
        "accelerate_configs": len(accounted),
        "trainings_ended": ended,
        "callback_peak_over_training": took[1] / took[0],
    }


def callback(home: Path) -> dict[str, float]:
    """What accounts take of a training in one process."""
    most, took = [], []
    for watched in (False, True):

        def trainer(name: str, steps: int, watched: bool = watched, **pace: Any) -> Trainer:
            made = dpo(home / f"{name}-{watched}", model=pythia(**SMALL), max_steps=steps)
            if watched:
                made.add_callback(ForceCallback(made, **pace))
            return made

        of_bytes, of_seconds = trainer("bytes", 2, every=1), trainer("seconds", 500, share=SHARE)
        with LiveBytes() as live:
            of_bytes.train()
        most.append(live.most)
        began = time.process_time()
        of_seconds.train()
        took.append(time.process_time() - began)
    copy = sum(weight.nbytes for weight in pythia(**SMALL).parameters())
    return {
        "callback_copies": (most[1] - most[0]) / copy,
        "callback_share": (took[1] / took[0] - 1) / SHARE,
    }


def started(folder: Path, ranks: int, **plan: Any) -> None:
    """Runs the trainings of a plan over ranks."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    zero = {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    own = zero if plan["strategy"].startswith("zero") else {"ACCELERATE_USE_CPU": "true"}
    run_ranks("tests.benchmarks.sharded_ranks", folder, ranks, **own)


def accounts(home: Path) -> dict[str, float]:
    """How well accounts of trainings in bf16 close."""
    make_files(home)
    found = {
        objective: [account(home, objective, name) for name in OPTIMIZERS]
        for objective in ("sft", "dpo")
    }
    shares = {o: max(own.rounding_share for own in each) for o, each in found.items()}
    return {
        "bf16_closure": max(own.closure for each in found.values() for own in each),
        "bf16_arithmetic_share": max(shares.values()),
        **{f"bf16_arithmetic_share_{o.upper()}": share for o, share in shares.items()},
    }


def planned(_: Path) -> dict[str, bool]:
    """Whether a study of 8B weights fits."""
    return {"8b_on_8_of_80gb": remedies("ultrafeedback_llama3_8b.yaml", "h100x8") == {}}


if __name__ == "__main__":
    main(
        {
            "split": split,
            "callback": callback,
            "lora": lora,
            "accounts": accounts,
            "streamed": lambda _: json.loads(last_line("large")),
            "planned": planned,
        },
        at_least={"lora_8b_on_24gb": True, "8b_on_8_of_80gb": True, "accelerate_configs": 5},
        at_most={
            "bf16_closure": 1e-5,
            "lora_forces_over_training": 1.3,
            "lora_ledger_over_training": 1.3,
            "lora_plan_error": 0.15,
            "streamed_forces_over_training": 1.3,
            "streamed_audit_over_training": 1.3,
            "streamed_ledger_over_training": 1.3,
            "streamed_plan_error": 0.15,
            "sharded_equals_whole": 1e-6,
            "trainings_ended": 0,
            "callback_peak_over_training": 1.3,
            "callback_copies": 6.5,
            "callback_share": 1.2,
        },
    )
