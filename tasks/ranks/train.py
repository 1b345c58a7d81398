"""Program of a training's ranks: torchrun starts `python -m tasks.ranks.train job.json`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from dynolab import distributed
from dynolab.training.job import TrainJob


def run(job: TrainJob) -> None:
    """Trains as one of torchrun's ranks, or as the only process of the plain engine."""
    from dynolab.training.loop import train
    from models.language import load_language_model, load_tokenizer

    if job.config.engine.kind == "deepspeed":
        from dynolab.training.deepspeed_engine import init_ranks

        init_ranks()
    tokenizer = load_tokenizer(job.model)
    policy = load_language_model(
        job.model, attention=job.config.engine.attention, tokenizer=tokenizer
    )
    train(job, policy, tokenizer, partial(_observer, job) if job.config.ledger else None)
    distributed.leave()


def _observer(job: TrainJob, *parts: Any) -> Any:
    """The ledger of the steps that the job's settings name."""
    from dynolab.forces.ledger.tables import InRunLedger

    assert job.config.ledger is not None
    return InRunLedger(job.config.ledger, *parts)


def main() -> None:
    """Runs the job file named on the command line."""
    run(TrainJob.model_validate_json(Path(sys.argv[1]).read_text()))


if __name__ == "__main__":
    main()
