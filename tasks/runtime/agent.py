"""torchrun as a child process: runs the ranks of one job on this host and reports who failed.

python -m tasks.runtime.agent <ranks> <logs> <failures> <module> <job.json>
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(ranks: int, logs: Path, failures: Path, module: str, job: str) -> int:
    """Run torchrun to its end; `failures`/torchrun.json gets {rank: [exit code, unix second]}.

    `--standalone` lets the kernel choose the rendezvous port: no two jobs can collide. The
    time-out is that of an interrupted job; after a rank's failure torchrun gives the others its
    own 30 s to follow SIGTERM, and lists those that it ended among the failures.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    options = [
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        "--shutdown-timeout=5",
        f"--log-dir={failures}",  # else a folder in /tmp stays
        "--module",
        "tasks.runtime.rank_entry",
    ]
    try:
        torchrun.main([*options, str(os.getpid()), str(logs), str(failures), module, job])
    except ChildFailedError as error:
        ends = {str(rank): [end.exitcode, end.timestamp] for rank, end in error.failures.items()}
        (failures / "torchrun.json").write_text(json.dumps(ends), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    _ranks, _logs, _failures, _module, _job = sys.argv[1:]
    sys.exit(main(int(_ranks), Path(_logs), Path(_failures), _module, _job))
