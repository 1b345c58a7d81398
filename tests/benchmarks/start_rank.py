"""A rank program: loads a model and starts an engine, with the main memory that this takes."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from dynolab.training.config import TrainConfig
from dynolab.training.deepspeed_engine import DeepSpeedEngine, init_ranks
from dynolab.training.job import TrainJob
from tests.benchmarks.pythia import pythia


class Resident:
    """While open, `most` is the largest growth of this process's own memory, in bytes.

    Pages of files that are mapped do not count: the system drops them where others need memory.
    """

    def __enter__(self) -> Resident:
        self._before, self.most = resident(), 0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look)
        self._watch.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watch.join()

    def _look(self) -> None:
        while not self._ended.wait(0.001):
            self.most = max(self.most, resident() - self._before)


def resident() -> int:
    """Bytes of anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def start(config: TrainConfig, model: Path) -> DeepSpeedEngine:
    """As a training begins."""
    from dynolab.likelihood.token_logps import ResponseLogits
    from models.language import load_language_model

    policy = load_language_model(model, attention=config.engine.attention)
    return DeepSpeedEngine(ResponseLogits(policy.eval()), config)


def main() -> None:
    job = TrainJob.model_validate_json(Path(sys.argv[1]).read_text())
    init_ranks()
    rank = os.environ["RANK"]
    small = job.output.parent / f"small-{rank}"
    pythia(vocab_size=64, num_hidden_layers=1).save_pretrained(small)
    start(job.config, small)  # modules are imported, and libraries have their buffers
    with Resident() as memory:
        engine = start(job.config, job.model)
    weights = sum(file.stat().st_size for file in job.model.glob("*.safetensors"))
    figures = {"copies": memory.most / weights, "parameters": len(engine.master_weights())}
    (job.output.parent / f"figures-{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
