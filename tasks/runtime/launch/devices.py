"""This host's GPUs, each reserved by a flock on a lock file of its own.

A lock belongs to an open file. The kernel releases it when the last process that has the file open
ends, even by SIGKILL, so that there is nothing to clean up. While a lock is held, systemd does not
delete the file, however old it is (tmpfiles.d(5)).
"""

from __future__ import annotations

import fcntl
import gc
import importlib.metadata
import logging
import os
import pwd
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dynolab.errors import ConfigError

log = logging.getLogger(__name__)

# Variables: the GPUs that the user lists for Dynolab, and those that CUDA shows to a process.
LISTED, VISIBLE = "DYNOLAB_DEVICES", "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.2
SILENT_SECONDS = 2.0
"""How long a run waits in the queue before it says whom it waits for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]*")
_DEVICES = Path("/dev")


def gpus_visible(environment: Mapping[str, str]) -> bool:
    """Whether ranks with this environment can use a GPU; decided without importing torch."""
    with suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("torch").endswith("+cpu"):
            return False
    chosen = environment.get(VISIBLE)
    if chosen is not None and chosen.strip() in ("", "-1"):
        return False
    return any(_DEVICES.glob("nvidia[0-9]*")) or (_DEVICES / "kfd").exists()


def host_devices(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs available to ranks, named as in CUDA_VISIBLE_DEVICES.

    Those listed in DYNOLAB_DEVICES, else those in CUDA_VISIBLE_DEVICES, else all; empty if ranks
    with this environment compute on the CPU.

    **Raises** `ConfigError` for an invalid list.
    """
    if listed := environment.get(LISTED):
        return _names(LISTED, listed)
    if environment.get("DS_ACCELERATOR") == "cpu" or not gpus_visible(environment):
        return ()
    if visible := environment.get(VISIBLE):
        return _names(VISIBLE, visible)
    # CUDA numbers the devices that it finds from 0, whatever their numbers on the host.
    return tuple(str(number) for number, _ in enumerate(_DEVICES.glob("nvidia[0-9]*")))


def hide_other_devices() -> None:
    """Shows torch, in this process, the devices that DYNOLAB_DEVICES lists and no others.

    Call it before anything computes: CUDA reads its variable once. Without any GPU, DeepSpeed is
    told so: transformers imports it to save any model, and it would warn that it found none.
    """
    if listed := os.environ.get(LISTED):
        os.environ[VISIBLE] = ",".join(_names(LISTED, listed))
    elif not gpus_visible(os.environ):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def check_usable(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `ConfigError` if this rank was given GPUs that torch cannot use.

    Without it, torch would warn and compute on the CPU.
    """
    visible = environment.get(VISIBLE, "").strip()
    if visible in ("", "-1") or environment.get("DS_ACCELERATOR") == "cpu":
        return
    import torch

    if torch.cuda.is_available():
        return
    try:
        torch.cuda.init()
        reason = "it finds none"
    except (AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
    raise ConfigError(
        VISIBLE,
        visible,
        f"torch {torch.__version__} cannot use these GPUs ({reason}); install a torch that fits "
        "the driver, or set DS_ACCELERATOR=cpu to compute on the CPU",
    )


def _names(variable: str, listed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(","))
    if not all(map(_NAME.fullmatch, names)) or len(set(names)) < len(names):
        raise ConfigError(variable, listed, "list each device once, with commas between: 0,1")
    return names


def check_enough(field: str, count: int, names: Sequence[str]) -> None:
    """Raises `ConfigError` if `count` ranks need more devices than there are."""
    if count > len(names):
        there = f"{len(names)} GPU{'s' * (len(names) > 1)} ({', '.join(names)})"
        raise ConfigError(
            field, count, f"this host has {there}; choose no more, or DS_ACCELERATOR=cpu"
        )


@contextmanager
def hold_devices(count: int, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Wait for and lock `count` of the devices; yields device → descriptor of its lock.

    Waiting processes queue, and the first keeps each device that becomes free: a training on many
    devices is not starved by trainings on few.

    **Raises** `ConfigError` if the host has fewer than `count` devices.
    """
    check_enough("ranks", count, names)
    with ExitStack() as stack:
        locks: dict[str, int] = {}
        # The queue's lock is released as soon as this process has its devices: the next one waits.
        with ExitStack() as queue:
            _lock("queue-devices", queue, wait=True)
            if not _add_free(count, names, locks, stack):  # said once, then tried again and again
                log.warning(
                    "waiting for %d of the GPUs %s, of which %d are free: other runs compute on "
                    "the rest; this one goes on when they end, or name other GPUs in %s",
                    count,
                    ", ".join(names),
                    len(locks),
                    LISTED,
                )
            while not _add_free(count, names, locks, stack):
                time.sleep(POLL_SECONDS)
        log.info("computing on the GPUs %s", ", ".join(locks))
        yield locks


def _add_free(count: int, names: Sequence[str], locks: dict[str, int], stack: ExitStack) -> bool:
    """Lock free devices until `locks` holds `count`; returns whether it does."""
    for name in names:
        if name in locks or len(locks) == count:
            continue
        if (lock := _lock(f"device-{name}", stack, wait=False)) is not None:
            locks[name] = lock
    return len(locks) == count


def _lock(name: str, stack: ExitStack, *, wait: bool) -> int | None:
    """Lock a file until `stack` closes; returns None if another process holds the lock.

    The folder is shared by all users of the host, as the GPUs are.
    """
    folder = Path(tempfile.gettempdir()) / "dynolab-devices"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    file = folder / f"{name}.lock"
    try:  # read-only is enough for a lock, and allowed on other users' files
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o444)
    stack.callback(os.close, descriptor)
    if wait:
        # flock waits without a word: a timer tells the user whom this process waits for.
        slow = threading.Timer(SILENT_SECONDS, _name_holder, [file])
        slow.start()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        finally:
            slow.cancel()
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return descriptor


def _name_holder(file: Path) -> None:
    """Log which process holds a lock that this one waits for, and whose it is."""
    holder = "another process"
    with suppress(OSError, KeyError):  # without proc(5), ended meanwhile, or of an unknown user
        for line in Path("/proc/locks").read_text().splitlines():
            # number, kind, advisory or mandatory, read or write, process, major:minor:inode, range
            _, kind, _, _, process, inode, *_ = line.split()
            if kind == "FLOCK" and inode.endswith(f":{file.stat().st_ino}"):
                holder = f"process {process}"
                user = pwd.getpwuid(Path(f"/proc/{process}").stat().st_uid).pw_name
                holder += f" of user {user}"
    log.warning(
        "waiting for this host's GPUs: %s is first in their queue (%s); this run goes on when that "
        "one has its GPUs or ends",
        holder,
        file,
    )


class _OwnGPU:
    """One of the host's GPUs `names`, locked when its number is asked for first."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._name: str | None = None
        self._lock = ExitStack()

    def number(self) -> int | None:
        """The GPU's number as torch counts them; None where stages compute on the CPU.

        Waits until a GPU is free. **Raises** `ConfigError` for GPUs that torch cannot use.
        """
        import torch

        from dynolab.distributed import gpus_usable

        if gpus_visible(os.environ):
            check_usable({**os.environ, VISIBLE: ",".join(self._names)})
        if not gpus_usable():
            return None
        if self._name is None:
            self.take(self._names)  # sets the name, which mypy cannot see: hence str()
            torch.cuda.set_device(self._names.index(str(self._name)))
        return self._names.index(str(self._name))

    def take(self, names: Sequence[str]) -> None:
        """Wait for one of the GPUs."""
        (self._name,) = self._lock.enter_context(hold_devices(1, names))

    def give_back(self) -> str | None:
        """Free the memory that torch keeps for reuse and unlock the GPU; returns its name."""
        import torch

        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
        self._lock.close()
        name, self._name = self._name, None
        return name


_stage_gpu: _OwnGPU | None = None
"""The GPU of the stage that runs in this process."""


@contextmanager
def own_gpu() -> Iterator[None]:
    """While the block runs, `distributed.device` is a GPU that no other run uses, or the CPU.

    Does nothing on hosts without GPUs.
    """
    global _stage_gpu
    if not (names := host_devices()):
        yield
        return
    from dynolab import distributed

    _stage_gpu = _OwnGPU(names)
    try:
        with distributed.gpu_chosen_by(_stage_gpu.number):
            yield
    finally:
        _stage_gpu.give_back()
        _stage_gpu = None


@contextmanager
def gpu_lent_to_ranks() -> Iterator[None]:
    """While the block runs, the stage of this process holds no GPU; then it waits for the same one.

    Tensors that the stage still uses stay on it; only unused memory is freed. Nobody holds a GPU
    while waiting for more: two processes, each with one that the other needs, would wait forever.
    """
    gpu = _stage_gpu
    name = gpu.give_back() if gpu is not None else None
    yield  # without `finally`: a stage that fails needs no GPU any more
    if gpu is not None and name is not None:
        gpu.take([name])
