"""torchrun as a child process: runs a job's ranks on this host and reports who failed.

python -m tasks.runtime.launch.agent <failures> <share as JSON>
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tasks.runtime.launch.local_job import LocalJob


def main(failures: Path, local_job: LocalJob) -> int:
    """Run torchrun to its end; `failures`/torchrun.json gets {rank: [exit code, unix second]}.

    The time-out is that of an interrupted job; after a rank's failure torchrun gives the others
    its own 30 s to follow SIGTERM, and lists those that it ended among the failures.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = [
        *meeting(local_job, failures),
        f"--local-addr={local_job.address}",
        f"--nproc-per-node={local_job.ranks}",
        "--max-restarts=0",
        "--shutdown-timeout=5",
        f"--log-dir={failures}",  # else a folder in /tmp stays
        "--module",
        "tasks.runtime.launch.rank_entry",
    ]
    program = [
        str(os.getpid()),
        str(local_job.logs),
        str(failures),
        local_job.module,
        str(local_job.job),
    ]
    try:
        torchrun.main([*options, *program])
    except ChildFailedError as error:
        ends = {str(rank): [end.exitcode, end.timestamp] for rank, end in error.failures.items()}
        (failures / "torchrun.json").write_text(json.dumps(ends), encoding="utf-8")
        return 1
    return 0


def meeting(local_job: LocalJob, private: Path) -> list[str]:
    """How this torchrun finds the others.

    Alone it keeps its state in a file of a private folder: it unpickles it, and what
    `--standalone` opens for it is a port at which everybody could put another one. Between hosts
    the rendezvous is static: rank 0 is on the first host, beside the supervisor that follows its
    files. c10d's elastic one orders hosts by address and restarts what is left of them, which a
    job of fixed size has no use for.
    """
    if local_job.endpoint is None:
        return [
            "--nnodes=1",
            "--rdzv-backend=c10d",
            "--rdzv-conf=store_type=file",
            f"--rdzv-endpoint={private / 'torchrun'}",
            "--rdzv-id=dynolab",
        ]
    return [
        f"--nnodes={local_job.hosts}",
        f"--node-rank={local_job.host}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={local_job.endpoint}",
        "--rdzv-id=dynolab",
    ]


if __name__ == "__main__":
    _failures, _share = sys.argv[1:]
    sys.exit(main(Path(_failures), LocalJob.model_validate_json(_share)))
