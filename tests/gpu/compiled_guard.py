"""Compiles `guard.cpp` once for a version of torch."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

SOURCE = Path(__file__).with_name("guard.cpp")


def compiler() -> str | None:
    """The C++ compiler of this machine, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compiled_guard(folder: Path) -> Path:
    """The shared library; compiled into the folder unless it is there.

    **Raises** `RuntimeError` with the compiler's messages where it fails.
    """
    content = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()
    library = folder / f"guard-{content[:16]}.so"
    if library.exists():
        return library
    unfinished = library.with_suffix(f".{os.getpid()}")
    command = [
        str(compiler()),
        *("-shared", "-fPIC", "-std=c++20", "-O0"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-I{path}" for path in include_paths()),
        str(SOURCE),
        *(f"-L{TORCH_LIB_PATH}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH_LIB_PATH}"),
        *("-o", str(unfinished)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    unfinished.rename(library)  # workers may compile at the same time
    return library
