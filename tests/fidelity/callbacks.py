"""Callbacks that are given a trainer and nothing else, over families of transformers.

Tiny models of real configuration classes, each in a short DPO training of TRL, without and with
`ForceCallback(trainer)` and `ProbeCallback(trainer)`. `measure` says what is counted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers.trainer_callback import PrinterCallback

from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from dynolab.results.ledger_reader import read_ledger
from tests.benchmarks.models import FAMILIES
from tests.integrations.test_forces import PARTS
from tests.integrations.test_trained import dpo, share
from tests.torchrun import run_ranks

NOT_CAUSAL = {"bert"}
PATHS = [family for family in FAMILIES if family not in NOT_CAUSAL]
OTHERWISE = {"modernbert_decoder", "recurrent_gemma"}
"""TRL's fused head leaves out a module before the head, or a cap of the logits: it trains another
function than the model's own forward, which is scored."""
BF16 = ("llama", "gpt2", "gemma3", "qwen3")
TURNS = 5
"""Trainings of each kind; the overhead is the ratio of their medians."""


def train(folder: Path, family: str, *, every: int = 1, **more: Any) -> dict[str, Any]:
    """A training, watched where `every` is not 0: its weights, seconds, log and callbacks."""
    torch.manual_seed(0)
    trainer = dpo(folder, family, held_out=True, **more)
    trainer.remove_callback(PrinterCallback)
    callbacks: list[Any] = []
    if every:
        callbacks = [ForceCallback(trainer, every=every), ProbeCallback(trainer, every=every)]
    for callback in callbacks:
        trainer.add_callback(callback)
    began, ended = time.perf_counter(), False
    try:
        trainer.train()
    except Exception:
        ended = True
    assert trainer.model is not None
    return {
        "seconds": time.perf_counter() - began,
        "ended": ended,
        "off": any(callback.off for callback in callbacks),
        "weights": {name: p.detach().clone() for name, p in trainer.model.named_parameters()},
        "probed": [line for line in trainer.state.log_history if "probe/chosen/logp" in line],
        "accounts": [
            line for line in trainer.state.log_history if "ledger/chosen/measured" in line
        ],
        "evaluated": trainer.evaluate() if every else {},
        "forces": callbacks[0] if callbacks else None,
    }


def closure(lines: list[dict[str, Any]]) -> float:
    """The largest difference between a step's parts and its measured change, in nats."""
    return max(
        abs(sum(line[f"ledger/{kind}/{part}"] for part in PARTS) - line[f"ledger/{kind}/measured"])
        for line in lines
        for kind in ("chosen", "rejected")
    )


def over_ranks(folder: Path, ranks: int) -> list[float]:
    """Every row's sum over two steps of one batch, trained over so many ranks."""
    run_ranks("tests.integrations.callback_ddp", folder, ranks)
    written = folder / "accounted" / "ledger"
    ledger = read_ledger(written, written)
    return [
        nats for account in ledger.accounts for nats in ledger.by_example(account.lines).tolist()
    ]


def measure(home: Path) -> dict[str, float | int | bool]:
    """What is counted.

    - `callback_families`: families trained; `trainings_ended`: by an error; `accounts_off`:
      callbacks that gave up.
    - `rows_named`: share of the accounts' sequences that have a row of the trainer's dataset.
    - `account_closure_max`, `bf16_closure_max`: in nats.
    - `arithmetic_max`, `bf16_arithmetic_max`: what rounding did, as a share of what sequences did.
    - `callback_weights_identical`: to the bit, with and without callbacks, in every family.
    - `probe_vs_trl_max`: `probe/<side>/logp` against TRL's own evaluation, in nats.
    - `ddp_equals_one_process`: the largest difference of a row's sum over one and two ranks.
    - `overhead_every_10`: seconds of 20 steps watched every 10, over those of 20 unwatched.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    ended = 0
    for family in PATHS:
        plain = train(home / family / "plain", family, every=0)
        watched = train(home / family / "watched", family)
        ended += watched["ended"]
        found["off"].append(watched["off"])
        found["closure"].append(closure(watched["accounts"]))
        found["rounded"].append(share(watched["accounts"], "arithmetic"))
        pairs = zip(plain["weights"].values(), watched["weights"].values(), strict=True)
        found["same"].append(all(torch.equal(one, other) for one, other in pairs))
        folder = watched["forces"].folder
        examples = read_ledger(folder, folder).example
        found["named"] += [str(name).startswith("row-") for name in examples]
        for side in () if family in OTHERWISE else ("chosen", "rejected"):
            trl = watched["evaluated"][f"eval_logps/{side}"]
            found["probe"].append(abs(watched["probed"][-1][f"probe/{side}/logp"] - trl))
    coarse = [train(home / "bf16" / name, name, bf16=True)["accounts"] for name in BF16]
    one, two = (over_ranks(home / f"ranks-{ranks}", ranks) for ranks in (1, 2))
    times: dict[int, list[float]] = {0: [], 10: []}
    for turn in range(TURNS):
        for every in sorted(times, reverse=bool(turn % 2)):
            folder = home / f"time-{turn}-{every}"
            run = train(folder, "llama", every=every, max_steps=20, max_length=48)
            times[every].append(run["seconds"])
    return {
        "callback_families": len(PATHS),
        "trainings_ended": ended,
        "accounts_off": sum(found["off"]),
        "rows_named": sum(found["named"]) / len(found["named"]),
        "account_closure_max": max(found["closure"]),
        "arithmetic_max": max(found["rounded"]),
        "callback_weights_identical": all(found["same"]),
        "probe_vs_trl_max": max(found["probe"]),
        "bf16_closure_max": max(map(closure, coarse)),
        "bf16_arithmetic_max": max(share(lines, "arithmetic") for lines in coarse),
        "ddp_equals_one_process": max(abs(a - b) for a, b in zip(one, two, strict=True)),
        "overhead_every_10": median(times[10]) / median(times[0]),
    }
