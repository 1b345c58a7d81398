"""torchrun as a child process: runs this host's ranks and records how those that failed ended.

python -m tasks.runtime.launch.agent <file for the ends> <options of torchrun ...>
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(ends: Path, options: list[str]) -> int:
    """Run torchrun and wait; `ends` gets {rank: [exit code, unix second]} if ranks fail.

    After a rank's failure torchrun waits 30 s for the others to end on SIGTERM, and lists those
    that it ended as failures, too.
    """
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        torchrun.main(options)
    except ChildFailedError as error:
        failed = {
            rank: [failure.exitcode, failure.timestamp] for rank, failure in error.failures.items()
        }
        ends.write_text(json.dumps(failed))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
