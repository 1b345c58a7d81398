"""How analyses grow beside the training that they are of.

    python -m tests.benchmarks.scale [--only weights tokens answers]

Trainings are of DPO on random pairs, on one rank. Prints one JSON object on its last line, and on
stderr the seconds and bytes behind it. Of `ledger` (one step, its watched answers in two sums),
`forces` (one recorded step, all parts), `audit` (the step's pairs) and `callback` (one account in
TRL's trainer):

- `time_growth_PART_weights`, `…_tokens`: exponent by which a part's seconds grow with those of a
  training step as the model grows (0.6M to 85M weights), or the rows; 1: as the training does.
- `time_growth_PART_answers`: exponent by which they grow with the answers that are watched.
- `bytes_growth_PART_…`: the same of the most bytes of tensors at once, over the training's.
- `growth_weights`, `…_tokens`, `…_answers`: the largest of these in seconds.
- `PART_over_step_8b`: training steps that a part takes at 8B weights, as the largest two models
  say.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dynolab.audit.audit import audit_pairs
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.forces import PolicyFunction, step_forces
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.integrations.forces import ForceCallback
from dynolab.objectives import build_objective
from dynolab.training.job import TrainJob
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.figures import main, seconds
from tests.benchmarks.large import LENGTHS, config_of, most_bytes, write_inputs
from tests.benchmarks.models import pythia
from tests.fidelity.time_shares import Clock
from tests.integrations.test_trained import dpo
from tests.training.small import make_job, make_tokenizer, metrics, run, step_record

REPEATS, STEPS = 3, 5
SHAPES = {"600k": (128, 3), "4.7m": (256, 6), "19m": (512, 6), "85m": (768, 12)}
"""Width and layers of models with few tokens, whose weights are in their layers."""
WEIGHTS = {name: 12 * width**2 * layers for name, (width, layers) in SHAPES.items()}
TIMES = (1, 2, 4)
"""What the lengths of rows, `LENGTHS`, are multiplied by."""
ANSWERS = (8, 32, 128, 512)
LARGE = 8e9
AT_MOST = {"growth_weights": 1.05, "growth_tokens": 1.05, "growth_answers": 1.05}

PARTS = ("ledger", "forces", "audit")
Cost = dict[str, dict[str, float]]
"""Seconds and bytes of each part."""


def costs(home: Path, shape: str, times: int, answers: int) -> Cost:
    """Of a training step and of each part.

    **Arguments:** `times`: length of rows, over `LENGTHS`; `answers`: how many are watched.
    """
    width, layers = SHAPES[shape]
    model = pythia(
        vocab_size=len(make_tokenizer()),
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=4 * width,
        num_attention_heads=width // 64,
    )
    home.mkdir()
    prompt, chosen, rejected = (times * length for length in LENGTHS)
    probes = write_inputs(home, model, (prompt, chosen, rejected), answers // 2)
    job = run(make_job(home, home / "trained", config_of()))
    policy = PolicyFunction(load_language_model(job.output / "model"))
    encoder = Encoder(load_tokenizer(job.model), 2048, "error")
    measured = {"training": training(home, job)}
    for name, part in analyses(job, policy, encoder, probes).items():
        took = min(seconds(part) for _ in range(REPEATS))
        measured[name] = {"seconds": took, "bytes": most_bytes(part)}
    print(shape, times, answers, json.dumps(measured), file=sys.stderr, flush=True)
    return measured


def training(home: Path, job: TrainJob) -> dict[str, float]:
    """The fastest step's seconds, and the most bytes of tensors at once, without records."""
    config = job.config.model_copy(update={"steps": STEPS, "record_steps": ()})
    again = job.model_copy(update={"config": config, "output": home / "again"})
    run(again)
    fastest = max(line["train/examples_per_s"] for line in metrics(again))
    return {"seconds": config.batch_size / fastest, "bytes": most_bytes(lambda: run(again))}


def analyses(
    job: TrainJob, policy: PolicyFunction, encoder: Encoder, probes: list[ProbeRow]
) -> dict[str, Callable[[], object]]:
    """The parts that the library makes of a training whose first two steps are recorded."""
    record = step_record(job, 1)
    objective: Any = build_objective(job.config.objective)
    pairs = encoder.examples(list(read_rows(job.examples, Example))[: job.config.batch_size])
    encoded = [sequence for sequence in encoder.probes(probes) if sequence is not None]
    sides = [encoded[start::2] for start in (0, 1)]
    watched = [Functional.mean(str(number), side) for number, side in enumerate(sides)]

    account = Ledger(policy, watched)
    account.enter(record)  # its trial is made once in a training

    def ledger() -> None:
        account.forget()
        account.enter(record)

    return {
        "ledger": ledger,
        "forces": lambda: step_forces(record, policy, probes, encoder, stage="dpo"),
        "audit": lambda: audit_pairs(policy, pairs, objective),
    }


def callback(folder: Path, model: Path) -> dict[str, float]:
    """Seconds of an account in TRL's trainer, on short rows, and of a step without it."""
    trainer = dpo(folder, model=load_language_model(model), max_steps=STEPS)
    forces = ForceCallback(trainer, every=1)
    clock = Clock(forces=forces)
    for one in (clock, forces):
        trainer.add_callback(one)
    trainer.train()
    assert not forces.off
    return {"seconds": clock.took["forces"], "step": clock.plain}


def growth(sizes: list[float], values: list[float]) -> float:
    """The exponent of the power of sizes that fits values best."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def grown(
    measured: list[Cost],
    axis: str,
    sizes: list[float] | None = None,
    parts: tuple[str, ...] = PARTS,
) -> dict[str, float]:
    """Exponents of parts; without sizes, over what the training takes."""
    figures = {}
    for kind, name in (("seconds", "time"), ("bytes", "bytes")):
        trained = [cost["training"][kind] for cost in measured]
        for part in parts:
            values = [cost[part][kind] for cost in measured]
            figures[f"{name}_growth_{part}_{axis}"] = growth(sizes or trained, values)
    return figures | {
        f"growth_{axis}": max(figures[f"time_growth_{part}_{axis}"] for part in parts)
    }


def weights(home: Path) -> dict[str, float]:
    """As the model grows."""
    measured = [costs(home / name, name, 1, 8) for name in SHAPES]
    figures = grown(measured, "weights")
    in_trl = [callback(home / f"trl-{name}", home / name / "model") for name in SHAPES]
    steps, accounts = ([of[key] for of in in_trl] for key in ("step", "seconds"))
    figures["time_growth_callback_weights"] = growth(steps, accounts)
    # From the largest two models on, as small ones wait for Python.
    ratios = {
        part: [cost[part]["seconds"] / cost["training"]["seconds"] for cost in measured]
        for part in PARTS
    }
    ratios["callback"] = [account / step for account, step in zip(accounts, steps, strict=True)]
    *_, large, largest = WEIGHTS.values()
    further = math.log(LARGE / largest) / math.log(largest / large)
    for part, (*_, before, last) in ratios.items():
        figures[f"{part}_over_step"] = last
        figures[f"{part}_over_step_8b"] = last * (last / before) ** further
    return figures


def tokens(home: Path) -> dict[str, float]:
    """As rows grow."""
    measured = [costs(home / f"times-{times}", "4.7m", times, 8) for times in TIMES]
    return grown(measured, "tokens")


def answers(home: Path) -> dict[str, float]:
    """As more answers are watched; the audit watches none."""
    measured = [costs(home / f"answers-{count}", "600k", 1, count) for count in ANSWERS]
    sizes = [float(count) for count in ANSWERS]
    return grown(measured, "answers", sizes, ("ledger", "forces"))


if __name__ == "__main__":
    main({"weights": weights, "tokens": tokens, "answers": answers}, at_most=AT_MOST)
