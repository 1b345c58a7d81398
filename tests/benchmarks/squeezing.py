"""Squeezing: what is foretold of a real step, and which findings and mitigations are measured.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.squeezing

FOLDER holds `models/tinystories-656k` and `data/probes`. Prints one JSON object on its last line.

- `forecast_auc`: how well the first-order rule foretells which tokens of the vocabulary rise at
  the positions of rejected answers: area under the ROC curve, chance is 0.5; the median over the
  first `forecast_steps` DPO steps of 8 of the paper's pairs each, `…_low` and `…_high` the smallest
  and the largest. `forecast_auc_chosen`: at the positions of chosen answers. `forecast_auc_top`: of
  rejected answers, among the 20 likeliest tokens of every position. `forecast_right`: share of
  tokens that do as foretold. `…_one_pair`: of steps on one pair alone, where fewer other tokens
  push.
- `last_layer_auc`: the same area, of rejected answers, where what the head's own change does to all
  logits is the forecast: every token of the batch pushes, features stand still.
- `last_layer_explained`, `last_layer_cosine`, `last_layer_sign`: what the head's own change makes
  of the change of log π of the trained tokens, against the realised one, both answers' mean.
- `mitigation_arms`, `mitigation_seeds`: what `dynolab mitigation` compares on the built-in world;
  `mitigation_diverged`: how many of the runs diverged; `mitigation_wall_s`: seconds of the command
  in an empty home.
- `claims_checked`, `claims_appear`, `claims_absent`, `claims_unclear`: over the table of
  `dynolab reproduce` on the built-in world, in the same home; with `_tinystories` on the real
  model.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from dynolab.data.rows import write_rows
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.forces import PolicyFunction
from dynolab.results.squeezing import Forecast
from dynolab.squeezing.forecast import forecasts
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.loop import train
from dynolab.training.step_record import StepRecord
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.figures import gather, report, spread, timed
from tests.benchmarks.squeezing_flows import comparisons, real_findings

STEPS, PAIRS = 5, 8
STEPS_OF_ONE = 10


def forecast() -> dict[str, float]:
    """The rule against the first steps of a DPO run on the tinystories model."""
    with tempfile.TemporaryDirectory() as scratch:
        taken, (predicted, alone) = timed(
            lambda: (
                _predicted(Path(scratch) / "pairs", PAIRS, STEPS),
                _predicted(Path(scratch) / "pair", 1, STEPS_OF_ONE),
            )
        )
    rejected = [step for step in predicted if step.side == "rejected"]
    chosen = [step for step in predicted if step.side == "chosen"]
    return {
        **spread("forecast_auc", [step.auc for step in rejected]),
        **spread("forecast_auc_top", [step.auc_top for step in rejected]),
        **spread("forecast_auc_chosen", [step.auc for step in chosen]),
        **spread("forecast_right", [step.right / step.tokens for step in rejected]),
        **spread("forecast_auc_one_pair", [step.auc for step in alone if step.side == "rejected"]),
        **spread(
            "forecast_auc_chosen_one_pair", [step.auc for step in alone if step.side == "chosen"]
        ),
        **spread("last_layer_auc", [step.auc_last_layer for step in rejected]),
        **spread("last_layer_explained", [step.explained for step in predicted]),
        **spread("last_layer_cosine", [step.cosine for step in predicted]),
        **spread("last_layer_sign", [step.agree for step in predicted]),
        "forecast_steps": float(len(rejected)),
        "forecast_tokens": float(sum(step.tokens for step in predicted)),
        "forecast_wall_s": taken,
    }


def _predicted(folder: Path, pairs: int, steps: int) -> list[Forecast]:
    folder.mkdir()
    source = Path(os.environ["DYNOLAB_TEST_DATA"])
    model = source / "models/tinystories-656k"
    data = DataConfig(
        source="file",
        path=str(source / "data/probes/hh_helpful_probe_train.jsonl.gz"),
        format="probe_file",
        heldout_rows=0,
    )
    write_rows(folder / "train.jsonl", load_data(data).pairs)
    config = TrainConfig.model_validate(
        {
            "objective": {"name": "dpo", "beta": 0.1},
            "optimizer": {"name": "sgd", "learning_rate": 2e-2},
            "engine": {"kind": "plain", "ranks": 1},
            "steps": steps,
            "batch_size": pairs,
            "micro_batch_size": min(4, pairs),
            "overlong": "drop",
            "record_steps": range(steps),
        }
    )
    job = TrainJob(
        config=config,
        model=model,
        examples=folder / "train.jsonl",
        output=folder / "output",
        resume_out=folder / "resume",
    )
    train(job, load_language_model(model), load_tokenizer(model))
    policy = PolicyFunction(load_language_model(model))
    return [
        forecast
        for place in sorted((folder / "output/forces").glob("step-*"))
        for forecast in forecasts(StepRecord.load(place), policy, training="dpo")
    ]


PARTS: dict[str, Callable[[], dict[str, float]]] = {
    "forecast": forecast,
    "comparisons": comparisons,
    "real_findings": real_findings,
}
"""What is measured, part by part: each gives its figures by name."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(PARTS))
    only = parser.parse_args().only
    report(gather(part for name, part in PARTS.items() if only in (None, name)))


if __name__ == "__main__":
    main()
