"""Walks paths of the library on the pretended GPU.

`python -m tests.gpu.walk GUARD GROUPS`: the compiled guard, and as JSON the names of paths by their
group, whose module is `paths_GROUP`; where none are named, all of them are walked. Prints one line
of JSON for every path: what `Log` counts, the error that ended it, and its own figures.
"""

from __future__ import annotations

import ctypes
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.gpu.log import LOG


def main(guard: str, groups: str) -> None:
    """Walks the paths of some groups."""
    warnings.filterwarnings("ignore")
    # Before torch is imported: it asks only once whether there are hooks for CUDA.
    ctypes.CDLL(guard, mode=ctypes.RTLD_GLOBAL)
    from tests.gpu.one_gpu import become_machine_with_gpu

    become_machine_with_gpu()
    for group, wanted in json.loads(groups).items():
        for name, path in import_module(f"tests.gpu.paths_{group}").paths():
            if not wanted or name in wanted:
                line = {"group": group, "path": name, **walk(path)}
                print(json.dumps(line), flush=True)


def walk(path: Callable[[Path], Any]) -> dict[str, Any]:
    """Walks one path, which takes an empty folder and may return figures of its own."""
    from tests.gpu.pretended import PretendedGPU

    LOG.clear()
    error, figures = None, None
    with tempfile.TemporaryDirectory() as folder:
        try:
            with PretendedGPU():
                figures = path(Path(folder))
        except Exception:
            error = traceback.format_exc()
    return {"error": error, "figures": figures, **LOG.noted()}


if __name__ == "__main__":
    main(*sys.argv[1:])
