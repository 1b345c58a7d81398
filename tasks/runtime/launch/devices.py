"""The GPUs of this host, and who uses which: a kernel lock on one small file for each.

A lock belongs to an open file, and the kernel frees it with the last process that has the file
open, however that ends: after a kill there is nothing to clean up. While it is held, systemd does
not clear the file away, old as it may be (tmpfiles.d(5)).
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dynolab.errors import ConfigError

log = logging.getLogger(__name__)

LISTED, VISIBLE = "DYNOLAB_DEVICES", "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.2
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
    """The GPUs that ranks are given of, by the names that CUDA_VISIBLE_DEVICES takes.

    They are those that DYNOLAB_DEVICES lists, else those that CUDA_VISIBLE_DEVICES leaves, else
    all; none where ranks with this environment compute on the CPU.

    **Raises** `ConfigError` for a list that is none.
    """
    if listed := environment.get(LISTED):
        return _names(LISTED, listed)
    if environment.get("DS_ACCELERATOR") == "cpu" or not gpus_visible(environment):
        return ()
    if visible := environment.get(VISIBLE):
        return _names(VISIBLE, visible)
    # CUDA counts from 0 those that it finds, whichever of the host's they are.
    return tuple(str(number) for number, _ in enumerate(_DEVICES.glob("nvidia[0-9]*")))


def _names(variable: str, listed: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in listed.split(","))
    if not all(map(_NAME.fullmatch, names)) or len(set(names)) < len(names):
        raise ConfigError(variable, listed, "list each device once, with commas between: 0,1")
    return names


@contextmanager
def hold_devices(count: int, names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Holds `count` of the devices, waiting until they are free; device → descriptor of its lock.

    Who waits, waits in line, and the first in line keeps what becomes free: a training on many
    devices is not passed over for ever by those on few.

    **Raises** `ConfigError` where there are not so many.
    """
    if count > len(names):
        raise ConfigError(
            "ranks", count, f"this host has {len(names)} GPUs ({', '.join(names)}); choose no more"
        )
    with ExitStack() as held:
        locks: dict[str, int] = {}
        with ExitStack() as turn:
            _lock("line-devices", turn, wait=True)
            if not _add_free(count, names, locks, held):
                log.info("waiting for GPUs: %d of %d are free", len(locks), count)
            while not _add_free(count, names, locks, held):
                time.sleep(POLL_SECONDS)
        log.info("computing on the GPUs %s", ", ".join(locks))
        yield locks


def _add_free(count: int, names: Sequence[str], locks: dict[str, int], held: ExitStack) -> bool:
    """Locks devices that are free, up to `count`; whether there are enough now."""
    for name in names:
        if name in locks or len(locks) == count:
            continue
        if (lock := _lock(f"device-{name}", held, wait=False)) is not None:
            locks[name] = lock
    return len(locks) == count


def _lock(name: str, held: ExitStack, *, wait: bool) -> int | None:
    """Locks a file for as long as `held` is open; None where another process has it locked."""
    file = _folder() / f"{name}.lock"
    while True:
        with ExitStack() as opened:
            descriptor = _open(file)
            opened.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                return None
            if _is_at(descriptor, file):
                held.push(opened.pop_all())
                return descriptor


def _folder() -> Path:
    """One for all users of the host: GPUs know no users."""
    folder = Path(tempfile.gettempdir()) / "dynolab-devices"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(0o1777)
    return folder


def _open(file: Path) -> int:
    """For reading alone, which suffices for a lock, and which any user's file allows."""
    flags = os.O_RDONLY | os.O_NOFOLLOW
    try:
        return os.open(file, flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            return os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o444)
        return os.open(file, flags)


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether the open file is the one by that name still: a deleted one's lock binds nobody."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False
