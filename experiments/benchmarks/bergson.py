r"""Bergson (arXiv 2606.11660) beside the ledger and the audit: seconds, and LDS against retraining.

    python -m venv /tmp/bergson
    /tmp/bergson/bin/pip install --no-deps bergson==2.5.1 simple-parsing natsort petname \
        torchopt ml_dtypes docstring-parser optree bitsandbytes
    python -c 'import site; print(*site.getsitepackages())' \
        > $(echo /tmp/bergson/lib/python3*/site-packages)/beside.pth  # torch and more from here
    DYNOLAB_BERGSON=/tmp/bergson python -m experiments.benchmarks.bergson [--home FOLDER]

The built-in study's DPO, trained again without each random group of `counterfactual_builtin.yaml`,
on one seed. FOLDER keeps results, and what they cost when they were made; tables of both
comparisons are written there. Prints one JSON object on its last line.

All estimates are of the same pairs on the same single answers. The ledger and the metagradient are
of the whole DPO training, all parameters, with its loss. Bergson's scores are of one model, of the
linear layers below the head, and of the cross-entropy of responses: `tracin` is the product of
gradients at the model before and at the one after the training, summed; `trackstar` and `ekfac` are
its pipelines with their own settings, at the model after. It knows no loss on pairs, so that a pair
here has DPO's weight at the scored model times the chosen response's score less the rejected one's.
Its own MAGIC differentiates trainings by its own trainer, on cross-entropy alone; the metagradient
is what MAGIC computes, of this training.

- `NAME/lds`: mean over answers of the rank correlation, over random groups, of predicted with
  measured changes of their log-probability; `…_low`, `…_high`: of a bootstrap over groups.
  `NAME/seconds`: CPU seconds without imports. `another order`: what the same removals did to the
  training with its examples in another order; `NAME/of_ceiling`: the LDS over that one's.
- `ledger_over_bergson`: seconds over those of `ekfac`. `audit_over_bergson`: over those of products
  of all responses' gradients with the mean of all chosen answers', which the audit's `on_all` is;
  `audit/agreement`: rank correlation of both over pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

import numpy as np
from jaxtyping import Float

from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.forces.ledger.watched import functional_of
from dynolab.results.audit import PairAudit
from dynolab.results.ledger_reader import read_ledger
from dynolab.statistics import lds, rank_correlation
from experiments.counterfactual.flow import CounterfactualParameters, plan_removals
from experiments.counterfactual.results import Effect
from flows.flow import Plan, Step
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.work import StageResult
from tasks.shared.policies import load_encoder
from tasks.shared.result_table import result_table, write_table
from tests.benchmarks.bergson_pairs import pair_scores
from tests.benchmarks.figures import STUDIES, report
from tests.benchmarks.speed import cpu_seconds
from tests.flows.in_process import InProcess

COSTS = "seconds.json"


def finished(lab: InProcess, home: Path) -> tuple[dict[str, StageResult], Plan, dict[str, float]]:
    """The study up to its ledger, the plan of its retrainings, which have run, and the CPU seconds
    of each step."""
    costs = json.loads((home / COSTS).read_text()) if (home / COSTS).exists() else {}
    results: dict[str, StageResult] = {}

    def run(steps: Sequence[Step]) -> None:
        for step in steps:
            took = cpu_seconds(lambda step=step: results.update(lab.run_steps([step], results)))
            costs.setdefault(step.name, took)
            (home / COSTS).write_text(json.dumps(costs))

    study = load_parameters(StudyParameters, STUDIES / "builtin.yaml", ["audit.heldout_pairs=0"])
    wanted = takewhile(lambda step: step.name != "probe", study_steps(resolved(study)))
    run([step for step in wanted if step.name != "foresight"])
    file = STUDIES / "counterfactual_builtin.yaml"
    removals = load_parameters(CounterfactualParameters, file, ["further_seeds=0"])
    planned = plan_removals(removals, lab.platform)
    run(planned.steps)
    return results, planned, costs


def compared(lab: InProcess, home: Path, bergson: Path) -> dict[str, float]:
    """Every estimate's LDS and seconds."""
    results, planned, costs = finished(lab, home)
    data = lab.folder(results["data"])
    ledger = read_ledger(lab.folder(results["ledger"]), data)
    models = {
        "before": lab.folder(results["sft"], "model"),
        "after": lab.folder(results["whole"], "model"),
    }
    encoder = load_encoder(models["after"])
    rows = list(read_rows(data / "probes.jsonl", ProbeRow))
    accounts = [account.row for account in ledger.accounts if account.row.single]
    answers = [functional_of(row, rows, encoder).terms[0].sequence for row in accounts]
    encoded = [encoder.example(row) for row in read_rows(data / "train.jsonl", Example)]
    pairs = [pair for pair in encoded if pair is not None and pair.rejected is not None]
    beta = planned.steps[0].config.objective.beta
    of_pairs, took = pair_scores(bergson, models, beta, pairs, answers)
    costs |= took

    groups = [g for g in planned.steps[-1].config.groups if g.answer is None]
    effects = list(read_rows(lab.folder(results["counterfactual"]) / "effects.jsonl", Effect))
    by_group = {(effect.estimate, effect.functional, effect.group): effect for effect in effects}

    def table(estimate: str, part: str) -> Float[np.ndarray, "answers groups"]:
        rows_of_effects = [
            [by_group[estimate, row.name, g.name] for g in groups] for row in accounts
        ]
        return np.array(
            [[getattr(effect, part) for effect in step_results] for step_results in rows_of_effects]
        )

    estimates = dict.fromkeys(e.estimate for e in effects if e.group == groups[0].name)
    predicted: dict[str, np.ndarray] = {name: table(name, "predicted") for name in estimates}
    place = {pair.id: number for number, pair in enumerate(pairs)}
    members = [[place[example] for example in group.examples] for group in groups]
    audited = read_rows(lab.folder(results["audit"]) / "audit.jsonl", PairAudit)
    on_all = {row.pair_id: row.on_all for row in audited}
    agreement = rank_correlation(
        np.array([on_all[pair.id] for pair in pairs]), of_pairs.pop("audit")[:, 0]
    )
    for method, step_results in of_pairs.items():
        predicted[f"bergson {method}"] = -np.array(
            [step_results[some].sum(0) for some in members]
        ).T
    figures: dict[str, float] = {}
    for name, forecasts in predicted.items():
        score, low, high = lds(forecasts, table("ledger", "measured"))
        figures |= {f"{name}/lds": score, f"{name}/lds_low": low, f"{name}/lds_high": high}
        figures |= {f"{name}/groups": len(groups)}
        if name in costs:
            figures[f"{name}/seconds"] = costs[name]
    ceiling = figures["another order/lds"]
    figures |= {f"{name}/of_ceiling": figures[f"{name}/lds"] / ceiling for name in predicted}
    figures |= {
        "audit/seconds": costs["audit"],
        "bergson audit/seconds": costs["bergson audit"],
        "audit/agreement": float(agreement),
        "ledger_over_bergson": costs["ledger"] / costs["bergson ekfac"],
        "audit_over_bergson": costs["audit"] / costs["bergson audit"],
    }
    step_results = {
        name: results[name] for name in [*planned.existing, *(s.name for s in planned.steps)]
    }
    parameters = planned.parameters.model_dump()
    table_of_run = result_table(lab.platform.store, "counterfactual", parameters, step_results)
    write_table(table_of_run, home / "counterfactual-builtin.json")
    beside = {"name": "bergson-builtin", "verdicts": {}, "estimates": {}, "numbers": figures}
    write_table({**table_of_run, **beside}, home / "bergson-builtin.json")
    return figures


def main() -> None:
    """Print the figures, and keep results and tables in `--home`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path)
    chosen_home = parser.parse_args().home
    bergson = Path(os.environ.get("DYNOLAB_BERGSON", ""))
    if not (bergson / "bin" / "python").exists():
        sys.exit("set DYNOLAB_BERGSON to the folder of an environment with Bergson; see above")
    os.environ |= {**COMPUTING, **os.environ}
    with tempfile.TemporaryDirectory() as folder:
        home = chosen_home or Path(folder)
        home.mkdir(exist_ok=True)
        report(compared(InProcess(home), home, bergson))


if __name__ == "__main__":
    main()
