"""The ledger: whether its entries add up, and what it costs.

    python -m tests.benchmarks.ledger

With DYNOLAB_TEST_DATA it also measures DPO on `deploy/studies/hh_tinystories.yaml`. Prints one JSON
object on its last line; a figure of one training ends in its name: `_sgd` and `_adamw` (DPO on the
built-in study), `_grpo` (GRPO there), `_tinystories` (DPO).

- `closure_max`: largest |Σ entries + residual − measured| over the path's length, of all trainings;
  `residual_share_max`: largest |Σ residual| over the path's length.
- `cost_full_over_training`: the stage (training run again, every entry by example and side) over
  the training; `cost_sampled_over_training`: the same of one step in ten.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from dynolab.objectives import GRPOConfig
from dynolab.training.config import GroupTrainConfig, OptimizerConfig
from flows.parameters import load_parameters
from flows.study import StudyParameters, resolved, study_steps
from tasks.group_training import GROUP, PROMPTS
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.stage import run_stage
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.work import StageResult
from tasks.training import PREFERENCE
from tests.benchmarks.figures import STUDIES, gather, report
from tests.flows.in_process import InProcess

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)
ADAMW = OptimizerConfig(learning_rate=1e-4, weight_decay=0.01)
EVERY = 10


class Study(InProcess):
    """A study's stages up to SFT, and ledgers of trainings that go on from it."""

    def __init__(self, home: Path, file: str) -> None:
        super().__init__(home)
        self.parameters = resolved(load_parameters(StudyParameters, STUDIES / file))
        known = {step.name: step for step in study_steps(self.parameters)}
        self.results = self.run_steps([known[name] for name in ("data", "base", "sft")])

    def measured(
        self, name: str, stage: Any, training: Any, **more: StageResult
    ) -> dict[str, float]:
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
        seconds = trained.metrics["seconds"]
        return {
            f"closure_{name}": whole.metrics["ledger/closure"],
            f"residual_share_{name}": whole.metrics["ledger/residual_share"],
            f"cost_full_over_training_{name}": whole.metrics["seconds"] / seconds,
            f"cost_sampled_over_training_{name}": sampled.metrics["seconds"] / seconds,
        }

    def dpo(self, name: str, **changes: Any) -> dict[str, float]:
        """The study's preference training, with changes."""
        training = self.parameters.preference.model_copy(update=changes)
        return self.measured(name, PREFERENCE, training)

    def grpo(self) -> dict[str, float]:
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
        return self.measured("grpo", GROUP, training, prompts=prompts)


def main() -> None:
    os.environ |= {**COMPUTING, **os.environ}  # as the command does
    with tempfile.TemporaryDirectory() as home:
        study = Study(Path(home) / "builtin", "builtin.yaml")
        parts = [
            lambda: study.dpo("sgd"),
            lambda: study.dpo("adamw", optimizer=ADAMW),
            study.grpo,
        ]
        if "DYNOLAB_TEST_DATA" in os.environ:
            stories = Path(home) / "tinystories"
            parts.append(lambda: Study(stories, "hh_tinystories.yaml").dpo("tinystories"))
        figures = gather(parts)
    for key in (
        "closure",
        "residual_share",
        "cost_full_over_training",
        "cost_sampled_over_training",
    ):
        figures[f"{key}_max"] = max(v for name, v in figures.items() if name.startswith(key))
    report(
        figures,
        at_most={
            "closure_max": 1e-6,
            "cost_sampled_over_training_max": 2.0,
        },
    )


if __name__ == "__main__":
    main()
