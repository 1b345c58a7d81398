"""Program of a force map's ranks: torchrun starts `python -m tasks.ranks.force_map job.json`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dynolab import distributed
from dynolab.forces.map.job import MapJob, fill_map
from tasks.shared.policies import load_policy


def main() -> None:
    """Computes this rank's part of the job file named on the command line."""
    job = MapJob.model_validate_json(Path(sys.argv[1]).read_text())
    device = distributed.device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.join()
    fill_map(job, load_policy(job.model, job.adapter, copies=1))
    distributed.leave()


if __name__ == "__main__":
    main()
