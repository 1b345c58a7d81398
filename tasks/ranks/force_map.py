"""What every rank of a force map runs: `python -m tasks.ranks.force_map job.json` by torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dynolab import distributed
from dynolab.forces.map.job import MapJob, fill_map
from tasks.shared.policies import load_policy


def main() -> None:
    """Reads the job file named on the command line and computes this rank's share."""
    job = MapJob.model_validate_json(Path(sys.argv[1]).read_text())
    device = distributed.device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.join()
    fill_map(job, load_policy(job.model, job.adapter))
    distributed.leave()


if __name__ == "__main__":
    main()
