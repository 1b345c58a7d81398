"""torchrun as a child process: runs a job's ranks on this host and records those that fail.

python -m tasks.runtime.launch.agent <failures> <local job as JSON>
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tasks.runtime.launch.local_job import LocalJob


def main(failures: Path, local_job: LocalJob) -> int:
    """Run torchrun and wait; `failures`/torchrun.json gets {rank: [exit code, unix second]}.

    The shutdown time-out applies to an interrupted job. After a rank's failure torchrun waits 30 s
    for the others to end on SIGTERM, and lists those that it ended as failures, too.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = [
        *rendezvous_options(local_job, failures),
        f"--local-addr={local_job.address}",
        f"--nproc-per-node={local_job.ranks}",
        "--max-restarts=0",
        "--shutdown-timeout=5",
        f"--log-dir={failures}",  # the default leaves a folder in /tmp
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


def rendezvous_options(local_job: LocalJob, private: Path) -> list[str]:
    """torchrun's rendezvous options.

    On a single host torchrun keeps its state in a file of a private folder: it unpickles that
    state, and `--standalone` would open a port at which anybody could replace it. Several hosts
    use the static rendezvous: rank 0 is on the first host, next to the supervisor that reads its
    files. c10d's elastic rendezvous orders hosts by address and restarts with the remaining ones,
    which is of no use to a job of fixed size.
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
    _failures, _local_job = sys.argv[1:]
    sys.exit(main(Path(_failures), LocalJob.model_validate_json(_local_job)))
