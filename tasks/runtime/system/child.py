"""Entry point of every process that Dynolab starts: tie it to its parent, then run a module.

    python -m tasks.runtime.system.child <parent pid> <module> [arguments ...]

Only the standard library is imported here, so that the process is tied to its parent within
milliseconds, long before torch or a server is loaded.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
GRACE = "DYNOLAB_GRACE_SECONDS"
STARTER = "DYNOLAB_STARTER"
"""Host and process that started those which inherit this variable."""


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process as soon as its parent, process `parent`, ends.

    The signal is sent when the *thread* that forked this process ends (prctl(2)); `start_child`
    therefore forks from a thread that lives as long as the process. A parent that ended before
    the call sends no signal any more; then this process exits at once. Does nothing outside Linux,
    which alone has this signal.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def starter() -> int:
    """The process that started this one.

    A child of Dynolab's finds it in STARTER. Its present parent would not do: if the starter ended
    while modules were loaded, that is another process. Without the variable, or with one from
    another host, the present parent is all there is.
    """
    host, _, pid = os.environ.get(STARTER, "").rpartition(" ")
    return int(pid) if host == os.uname().nodename else os.getppid()


def shield() -> None:
    """Block SIGTERM here and in all descendants, where a training has a time of grace.

    A scheduler sends it to every process at once; the ranks shall still save their state. The
    process that started them takes the signal (`tasks.runtime.launch.notice`).
    """
    if os.environ.get(GRACE):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def run_as_main(module: str, arguments: list[str]) -> None:
    """Run `module` as `python -m module arguments ...` would, in this process."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    shield()
    os.environ[STARTER] = f"{os.uname().nodename} {os.getpid()}"
    run_as_main(sys.argv[2], sys.argv[3:])
