"""What analyses cost beside the training that they are of, and whether the account closes.

    python -m tests.benchmarks.speed

DPO on the built-in study, `_sgd` and `_adamw`; with DYNOLAB_TEST_DATA also, `_hh`, on 200 rows of
HH with a model of 3M weights, as in the file that `dynolab init` writes. Prints one JSON object on
its last line. Costs are CPU seconds over those of the training alone, without probes and records:

- `ledger_exact_over_training`: training run again, every step by example and side, and a token map;
  `ledger_spaced_over_training`: the same with slopes at every third step alone, and
  `spaced_line_error`: how far a line then is off; `ledger_over_training`: of one step in ten,
  whose sums have intervals.
- `forces_step_over_training_step`: all forces of a recorded step, over a step of the training.
- `probes_share_of_training`: of the training as the study runs it.
- `audit_over_training`: the audit of all pairs; `ledger_peak_bytes`: resident memory of the ledger
  above what its process had before.
- `line_invariance_max`: most that a line of the first recorded step moves, over the step's mean
  line, in other batches and orders and on two threads. `same_numbers_max`: of a recorded step,
  pushes of examples, forces on layers and gradients of sides beside the slow routes (token by
  token, layer by layer, by autograd), over the largest number of each.
- `make_study_s`: wall seconds of the built-in study in an empty home, servers included;
  `own_pairs_to_culprits_s`: as of `first_minutes`, on HH and the model of 3M weights.
- `closure`: largest |Σ entries + residual − measured| over the path's length; `residual_share`:
  largest |Σ residual| over it.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dynolab.forces import PolicyFunction, feature_forces, side_gradients, split_step, token_forces
from dynolab.forces.function.rules import blocks_of
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.forces.ledger.responses import gradients_of, step_responses
from dynolab.objectives import build_objective
from dynolab.results.ledger import read_arrays, read_table
from dynolab.training.config import EngineConfig, OptimizerConfig
from dynolab.training.step_record import StepRecord
from flows.flow import Step
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.audit import AuditConfig
from tasks.runtime.stage import run_stage
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.work import StageResult
from tasks.shared.policies import load_policy
from tests.benchmarks.figures import (
    ROOT,
    STUDIES,
    main,
    peak_above_start,
    real_inputs,
    seconds,
    with_data,
)
from tests.benchmarks.first_minutes import own_pairs
from tests.flows.in_process import InProcess
from tests.forces.test_ledger import moved_lines

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)
ADAMW = OptimizerConfig(learning_rate=1e-4, weight_decay=0.01)
ROWS, EVERY, ANSWERS, SPACING = 200, 10, 4, 3
STUDIED = {
    "ledger_exact_over_training": 4.0,
    "ledger_over_training": 2.0,
    "forces_step_over_training_step": 10.0,
    "probes_share_of_training": 0.15,
    "closure": 1e-6,
    "line_invariance_max": 1e-4,
    "same_numbers_max": 1e-5,
}
AT_MOST = {
    **{f"{key}_{name}": most for key, most in STUDIED.items() for name in ("sgd", "adamw", "hh")},
    "make_study_s": 150.0,
    "own_pairs_to_culprits_s": 120.0,
}


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of this process and its children."""
    before = os.times()
    work()
    return sum(os.times()[:4]) - sum(before[:4])


def measured(home: Path, parameters: StudyParameters, name: str) -> dict[str, float]:
    """A study's preference training and what is measured of it, on one rank of this process."""
    lab, training = InProcess(home), parameters.preference
    plain = training.model_copy(update={"engine": EngineConfig(kind="plain", ranks=1)})
    audited = {"preference": plain, "audit": parameters.audit or AuditConfig()}
    parameters = parameters.model_copy(update=audited)
    steps = {step.name: step for step in study_steps(resolved(parameters))}
    before = takewhile(lambda step: step.name != "preference", steps.values())
    results = lab.run_steps([step for step in before if step.name != "audit"])

    def result(step: Step, **changes: object) -> StageResult:
        """A stage's result, which is there from the second time on."""
        config = step.config.model_copy(update=changes)
        done: StageResult = run_stage(step.stage, config, step.sources(results), lab.platform)
        return done

    def cost(step: Step, **changes: object) -> float:
        return cpu_seconds(lambda: result(step, **changes))

    alone = cost(steps["preference"], probe_every=0, record_steps=())
    trained, costs = cost(steps["preference"]), dict[str, float]()
    results["preference"] = result(steps["preference"])
    exact_cost = partial(cost, steps["ledger"], slopes_every=1)
    peak = peak_above_start(lambda: costs.update(exact=exact_cost()))
    results["ledger"] = result(steps["ledger"], slopes_every=1)
    forces = cost(steps["preference-forces"])
    spaced = cost(steps["ledger"], slopes_every=SPACING)
    folders = [
        lab.folder(ledger)
        for ledger in (results["ledger"], result(steps["ledger"], slopes_every=SPACING))
    ]
    record = lab.record(results["preference"], training.record_steps[0])
    policy = load_policy(lab.folder(results["preference"], "model"))
    answers = [Functional.mean("", [example.chosen]) for example in record.examples[:ANSWERS]]
    figures = {
        "ledger_exact_over_training": costs["exact"] / alone,
        "ledger_spaced_over_training": spaced / alone,
        "spaced_line_error": line_error(*folders),
        "ledger_over_training": cost(steps["ledger"], slopes_every=1, every=EVERY) / alone,
        "forces_step_over_training_step": forces
        / len(training.record_steps)
        * (training.steps / alone),
        "probes_share_of_training": 1 - alone / trained,
        "audit_over_training": cost(steps["audit"]) / alone,
        "ledger_peak_bytes": peak,
        "line_invariance_max": moved_lines([record], policy, answers),
        "same_numbers_max": difference(record, policy),
        "closure": results["ledger"].metrics["ledger/closure"],
        "residual_share": results["ledger"].metrics["ledger/residual_share"],
    }
    return {f"{figure}_{name}": value for figure, value in figures.items()}


def line_error(exact: Path, spaced: Path) -> float:
    """Median over functionals of the median |line − exact line| over |exact line|."""
    expected, lines = (read_arrays(read_table(folder, "lines")) for folder in (exact, spaced))
    off = abs(lines["nats"] / expected["nats"] - 1)
    names = expected["functional"]
    return float(np.median([np.median(off[names == name]) for name in np.unique(names)]))


def difference(record: StepRecord, policy: PolicyFunction) -> float:
    """Largest difference of a fast route from a slow one, over the largest number of the slow."""
    objective, gradients = build_objective(record.facts.objective), gradients_of(record, policy)
    pair = replace(record.as_gradient_step(), examples=record.examples[:1])
    split = split_step(pair, policy)
    observed, blocks = record.examples[1].chosen, len(blocks_of(policy.causal) or ())
    layers, sides = [0, blocks // 2, blocks], side_gradients(record, policy)
    made = step_responses(record, gradients)
    chosen = torch.tensor([label.side == "chosen" for label in made.labels])

    def pulls(at: list[int]) -> Tensor:
        forces = feature_forces(policy, pair.examples, objective, at, at=record.before)
        return forces[0].total

    routes = [
        (
            example_pushes(pair, gradients, split.gradient, [observed])[0].sum(),
            token_forces(pair, policy, split.update, 0, observed).sum(),
        ),
        (pulls(layers), torch.cat([pulls([layer]) for layer in layers])),
        (made.gradients[chosen].sum(0), flatten(sides.chosen)),
        (made.gradients[~chosen].sum(0), flatten(sides.rejected)),
    ]
    return max(float((fast - slow).abs().max() / slow.abs().max()) for fast, slow in routes)


def builtin(optimizer: OptimizerConfig, home: Path) -> dict[str, float]:
    """The built-in study's DPO with another optimizer."""
    study = load_parameters(StudyParameters, STUDIES / "builtin.yaml")
    training = study.preference.model_copy(update={"optimizer": optimizer})
    changed = study.model_copy(update={"preference": training})
    return measured(home / "builtin", changed, optimizer.name)


def hh(home: Path) -> dict[str, float]:
    """The study that `dynolab init` writes."""
    rows, model = real_inputs("data/hh/harmless-base_test.jsonl.gz", "models/stories-3m")
    file = home / "hh.yaml"
    with gzip.open(rows, "rt") as lines:
        (home / "hh.jsonl").write_text("".join(islice(lines, ROWS)))
    command = [sys.executable, "-m", "flows.cli", "init", str(file), "--model", str(model)]
    subprocess.run([*command, "--data", str(home / "hh.jsonl")], check=True, stdout=sys.stderr)
    return measured(home / "hh", load_parameters(StudyParameters, file), "hh")


def cold_study(home: Path) -> dict[str, float]:
    """The built-in study, with the servers of an empty home alone."""
    known = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    known |= {"DYNOLAB_HOME": str(home / "cold"), "DYNOLAB_STORE": f"file://{home}/cold/store"}
    command = [sys.executable, "-m", "flows.cli", "study"]
    return {
        "make_study_s": seconds(lambda: subprocess.run(command, env=known, cwd=ROOT, check=True))
    }


if __name__ == "__main__":
    os.environ |= {**COMPUTING, **os.environ}  # as the command does
    built_in = {config.name: partial(builtin, config) for config in (SGD, ADAMW)}
    own = with_data(hh=hh, own_pairs=partial(own_pairs, model="models/stories-3m"))
    main({"cold_study": cold_study} | built_in | own, at_most=AT_MOST)
