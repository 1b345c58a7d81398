"""The ledger: whether accounts close, whether lines are right, and what an account costs.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.ledger

FOLDER holds what `deploy/studies/hh_tinystories.yaml` names; without it that study is left out.
Prints one JSON object on its last line; a figure of one training ends in its name: `_sgd` and
`_adamw` (DPO on the built-in study), `_grpo` (GRPO there), `_tinystories` (DPO).

- `closure_max`: largest |Σ lines + residual − measured| over the path's length, of all accounts;
  `residual_share_max`: largest |Σ residual| over the path's length.
- `lines_vs_brute_force`: largest difference of a line from central differences along the doses of
  its response, momentum included, over the largest line (toy model, float64, SGD and AdamW).
- `ledger_over_bound`: a step's slopes and responses over a plain forward and backward of the same
  tokens, with the model's own attention: 24 functionals of eight answers and a batch of 16 pairs,
  by example and side.
- `store_bytes_per_recorded_step`: bytes in the result of the built-in study's preference training
  that are there because a step was recorded, over the recorded steps.
- `cost_full_over_training`: the stage (training run again and its account by example and side of
  26 functionals and ten single answers, the latter by token) over the training;
  `cost_sampled_over_training`: of one step in ten.
- `interval_coverage`: how many of the sums by functional and side over all steps lie in the
  intervals from one step in ten, in 200 draws from the whole account, the lowest of all trainings;
  `interval_coverage_run`: of the sampled accounts themselves, whose momentum is interpolated.
- `in_run_overhead`: what a ledger in the run adds to a training, over the training: two
  functionals of eight answers, every fourth step.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dynolab.data.batches import by_length, collate
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.forces import PolicyFunction
from dynolab.forces.ledger.account import Ledger as Account
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.responses import step_responses
from dynolab.forces.ledger.sampling import sampled_steps
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import DPOConfig, GRPOConfig
from dynolab.report.inputs.ledger import Ledger, read_ledger
from dynolab.statistics import stratified_total
from dynolab.training.config import (
    GroupTrainConfig,
    InRunLedgerConfig,
    OptimizerConfig,
    TrainConfig,
)
from flows.parameters import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.group_training import GROUP, PROMPTS
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.stage import run_stage
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.work import StageResult
from tasks.shared.policies import load_encoder, load_policy
from tasks.training import PREFERENCE
from tests.benchmarks.figures import gather, interleaved, ratio, report
from tests.flows.in_process import InProcess
from tests.forces.brute_ledger import brute_line
from tests.forces.small_models import neox, pairs, train_steps, with_reference

STUDIES = Path(__file__).parents[2] / "deploy" / "studies"
SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)
OPTIMIZERS = {
    "sgd": SGD.model_copy(update={"momentum": 0.9, "weight_decay": 0.1}),
    "adamw": OptimizerConfig(learning_rate=1e-3, betas=(0.8, 0.95), epsilon=1e-6),
}
BRUTE_STEPS, REPEATS = 4, 7
TRAININGS = ("sgd", "adamw", "grpo", "tinystories")
EVERY, DRAWS = 10, 200
RECORDED = 50
"""Step whose batch is timed."""


def brute_force() -> dict[str, float]:
    """Every fourth line of a toy training against central differences."""
    functionals = [
        Functional.mean("chosen", [row.chosen for row in pairs(3)]),
        Functional.mean("likeliest", [row.chosen for row in pairs(2)], likeliest=True),
    ]
    differences = []
    for optimizer in OPTIMIZERS.values():
        model = neox()
        config = TrainConfig(
            objective=DPOConfig(beta=0.5),
            optimizer=optimizer,
            clip_norm=0.5,
            engine={"kind": "plain", "ranks": 1},
        )
        examples = with_reference(model, pairs(4))
        records = train_steps(model, config, examples, steps=BRUTE_STEPS).records
        policy = PolicyFunction(model, torch.float64)
        ledger = Account(policy, functionals)
        lines = [ledger.enter(record).lines for record in reversed(records[:-1])][::-1]
        for cause, own in enumerate(lines):
            brute = brute_line(policy, functionals, records, cause, 3)
            differences.append(float((own[3] - brute).abs().max() / own.abs().max()))
    return {"lines_vs_brute_force": max(differences)}


class Accounts(NamedTuple):
    """A training and its two ledgers."""

    trained: StageResult
    whole: StageResult
    sampled: StageResult


class Study(InProcess):
    """A study's stages up to SFT, and accounts of trainings that go on from it."""

    def __init__(self, home: Path, file: str) -> None:
        super().__init__(home)
        self.parameters = resolved(load_parameters(StudyParameters, STUDIES / file))
        known = {step.name: step for step in study_steps(self.parameters)}
        self.results = self.run_steps([known[name] for name in ("data", "base", "sft")])

    def account(self, stage: Any, training: Any, **more: StageResult) -> Accounts:
        """A training, its ledger, and that of one step in ten."""
        reads = {"data": self.results["data"], "model": self.results["sft"], **more}
        trained = run_stage(stage, training, reads, self.platform)
        whole, sampled = (
            run_stage(
                LEDGER,
                LedgerJob(training=training, every=every),
                {**reads, "trained": trained},
                self.platform,
            )
            for every in (1, EVERY)
        )
        return Accounts(trained, whole, sampled)

    def dpo(self, **changes: Any) -> Accounts:
        """The study's preference training, with changes."""
        return self.account(PREFERENCE, self.parameters.preference.model_copy(update=changes))

    def grpo(self) -> Accounts:
        """Groups on the study's questions."""
        training = GroupTrainConfig(
            objective=GRPOConfig(),
            rewards=({"name": "world_form"},),
            optimizer=SGD,
            engine=self.parameters.base.training.engine,
            steps=30,
            batch_size=16,
            micro_batch_size=16,
            completions=8,
            max_new_tokens=16,
            probe_every=30,
        )
        prompts = run_stage(PROMPTS, self.parameters.data, {}, self.platform)
        return self.account(GROUP, training, prompts=prompts)

    def bound(self, trained: StageResult) -> dict[str, float]:
        """A step's account over a plain forward and backward of its tokens."""
        folder = self.folder(trained)
        policy, encoder = load_policy(folder / "model"), load_encoder(folder / "model")
        record = self.record(trained, RECORDED)
        kinds: dict[tuple[str, str], list[Any]] = {}
        for row in read_rows(self.folder(self.results["data"]) / "probes.jsonl", ProbeRow):
            answers = kinds.setdefault((row.split, row.kind), [])
            if len(answers) < 8:
                answers.append(encoder.response(row.pair_id, row.prompt, row.response))
        functionals = [Functional.mean(str(kind), answers) for kind, answers in kinds.items()]
        gradients = GroupedGradients.build(policy, record.before, next(iter(kinds.values()))[:2])
        logits = ResponseLogits(policy.model.requires_grad_(True))
        watched = [term.sequence for functional in functionals for term in functional.terms]
        trained_on = [own for each in record.examples for _, own in each.responses((0, 1))]

        def account() -> None:
            slopes_of(functionals, gradients, record.before)
            step_responses(record, gradients)

        def plain() -> None:
            for sequences in (watched, trained_on):
                for members in by_length(sequences, 16_384):
                    policy.model.zero_grad()
                    batch = collate([sequences[member] for member in members], 0)
                    token_logps(logits(batch), batch).sum().backward()

        return ratio("ledger_over_bound", *interleaved(account, plain, repeats=REPEATS))

    def figures(self, name: str, accounts: Accounts) -> dict[str, float]:
        """Of a training's accounts."""
        seconds = [result.metrics["seconds"] for result in accounts]
        whole, sampled = (
            read_ledger(self.folder(result), self.folder(self.results["data"]))
            for result in (accounts.whole, accounts.sampled)
        )
        return {
            f"closure_{name}": whole.summary.closure,
            f"residual_share_{name}": whole.summary.residual_share,
            f"cost_full_over_training_{name}": seconds[1] / seconds[0],
            f"cost_sampled_over_training_{name}": seconds[2] / seconds[0],
            f"interval_coverage_{name}": coverage(whole),
            f"interval_coverage_run_{name}": run_coverage(whole, sampled),
        }

    def store_bytes(self, trained: StageResult) -> dict[str, float]:
        """What the store holds because of a recorded step."""
        manifest = self.platform.store.manifest(trained.address, trained.digest)
        sizes = [size for path, size in manifest.sizes.items() if path.startswith("forces/")]
        steps = len(self.parameters.preference.record_steps)
        return {"store_bytes_per_recorded_step": sum(sizes) / steps}

    def in_run(self) -> dict[str, float]:
        """Trainings with a ledger in the run and without."""
        watched = InRunLedgerConfig(every=4, kinds=("chosen", "rejected"), pairs=8)
        reads = {"data": self.results["data"], "model": self.results["sft"]}

        def train(ledger: InRunLedgerConfig | None) -> None:
            config = self.parameters.preference.model_copy(
                update={"ledger": ledger, "record_steps": (), "probe_every": 0}
            )
            run_stage(PREFERENCE, config, reads, self.platform, fresh=True)

        own = interleaved(lambda: train(watched), lambda: train(None), repeats=3)
        figures = ratio("in_run_overhead", *own)
        return {**figures, "in_run_overhead": figures["in_run_overhead"] - 1}


def coverage(whole: Ledger) -> float:
    """Of intervals from drawn steps of an account; the draws are seeded by their number."""
    held = []
    for account in whole.accounts:
        for side in ("chosen", "rejected"):
            values = whole.side_steps(account, side)
            for seed in range(DRAWS):
                drawn = sampled_steps(range(len(values)), EVERY, seed)
                total = stratified_total(values[list(drawn)], np.array(list(drawn.values())))
                held.append(total.low <= values.sum() <= total.high)
    return float(np.mean(held))


def run_coverage(whole: Ledger, sampled: Ledger) -> float:
    """Of the intervals of an account of drawn steps."""
    held = []
    for full, part in zip(whole.accounts, sampled.accounts, strict=True):
        for side in ("chosen", "rejected"):
            total = sampled.side_total(part, side)
            held.append(total.low <= whole.side_total(full, side).mean <= total.high)
    return float(np.mean(held))


def of_trainings(figures: Mapping[str, float], key: str) -> list[float]:
    """A figure of every training."""
    return [figures[f"{key}_{name}"] for name in TRAININGS if f"{key}_{name}" in figures]


def main() -> None:
    os.environ |= {**COMPUTING, **os.environ}  # as the command does
    with tempfile.TemporaryDirectory() as home:
        study = Study(Path(home) / "builtin", "builtin.yaml")
        sgd = study.dpo()
        adamw = OptimizerConfig(learning_rate=1e-4, weight_decay=0.01)
        parts = [
            brute_force,
            lambda: study.figures("sgd", sgd),
            lambda: study.bound(sgd.trained),
            lambda: study.store_bytes(sgd.trained),
            study.in_run,
            lambda: study.figures("adamw", study.dpo(optimizer=adamw)),
            lambda: study.figures("grpo", study.grpo()),
        ]
        if "DYNOLAB_TEST_DATA" in os.environ:
            stories = Path(home) / "tinystories"
            parts.append(lambda: on_tinystories(stories))
        figures = gather(parts)
    for name in ("closure", "residual_share", "cost_full_over_training"):
        figures[f"{name}_max"] = max(of_trainings(figures, name))
    figures["cost_sampled_over_training"] = max(of_trainings(figures, "cost_sampled_over_training"))
    figures["interval_coverage"] = min(of_trainings(figures, "interval_coverage"))
    report(
        figures,
        at_least={"interval_coverage": 0.9},
        at_most={
            "closure_max": 1e-6,
            "lines_vs_brute_force": 1e-6,
            "ledger_over_bound": 1.5,
            "cost_sampled_over_training": 2.0,
            "in_run_overhead": 0.25,
            "store_bytes_per_recorded_step": 1e6,
        },
    )


def on_tinystories(home: Path) -> dict[str, float]:
    """DPO on the small stories model."""
    study = Study(home, "hh_tinystories.yaml")
    return study.figures("tinystories", study.dpo())


if __name__ == "__main__":
    main()
