"""A rank program: a short training of a random shape, with the most bytes of its tensors."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from dynolab.costs.live_bytes import LiveBytes
from dynolab.data.rows import read_rows
from dynolab.results.study import MetricsLine
from dynolab.training.job import TrainJob
from tasks.ranks.train import run


def main() -> None:
    job = TrainJob.model_validate_json(Path(sys.argv[1]).read_text())
    with LiveBytes() as live:
        run(job)
    lines = read_rows(job.output / "metrics.jsonl", MetricsLine)
    steps = [job.config.batch_size / line.metrics["train/examples_per_s"] for line in lines]
    figures = {
        "live": live.most,
        "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds": sum(steps),
    }
    rank = os.environ.get("RANK", "0")  # the group is left by now
    (job.output.parent / f"figures-{rank}.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
