"""Runs one check in this process: `python -m tests.gpu.check.one NAME FOLDER [GUARD]`.

Writes the figures to `figures.json` of the folder, and `error.json` where an error ends the check.
With the compiled guard of the pretended GPU, it runs on that.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path


def main(name: str, folder: str, guard: str = "") -> None:
    if guard:
        # Before torch is imported: it asks only once whether there are hooks for CUDA.
        ctypes.CDLL(guard, mode=ctypes.RTLD_GLOBAL)
    from tasks.runtime.launch.devices import hide_other_devices
    from tasks.runtime.launch.own_gpu import own_gpu

    hide_other_devices()
    with ExitStack() as computing:
        if guard:
            from tests.gpu.one_gpu import become_machine_with_gpu
            from tests.gpu.pretended import PretendedGPU

            become_machine_with_gpu()
            computing.enter_context(PretendedGPU())
        computing.enter_context(own_gpu())
        from tests.gpu.check.every import CHECKS

        work = Path(folder, "work")
        work.mkdir()
        try:
            values = dict(CHECKS[name].measure(work))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            Path(folder, "error.json").write_text(json.dumps(reason))
            raise
        Path(folder, "figures.json").write_text(json.dumps(values))
        sys.stdout.flush()
        os._exit(0)  # taking torch down is no part of the check, and can take as long


if __name__ == "__main__":
    main(*sys.argv[1:])
