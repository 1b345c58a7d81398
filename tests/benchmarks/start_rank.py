"""A rank program: loads a model and starts an engine, with the main memory that this takes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.training.config import TrainConfig
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from dynolab.training.job import TrainJob
from models.language import load_language_model
from tests.benchmarks.resident import own, peak_above_start


def start(config: TrainConfig, model: Path) -> DeepSpeedEngine:
    """As a training begins."""
    policy = load_language_model(model, attention=config.engine.attention)
    return DeepSpeedEngine(ResponseLogits(policy), config)


def main() -> None:
    job = TrainJob.model_validate_json(Path(sys.argv[1]).read_text())
    init_ranks()
    rank = os.environ["RANK"]
    start(
        job.config, job.model.with_name("small")
    )  # modules are imported, and libraries have their buffers
    kept = []
    most = peak_above_start(lambda: kept.append(start(job.config, job.model)), own)
    weights = sum(file.stat().st_size for file in job.model.glob("*.safetensors"))
    (job.output.parent / f"figures-{rank}.json").write_text(json.dumps({"copies": most / weights}))


if __name__ == "__main__":
    main()
