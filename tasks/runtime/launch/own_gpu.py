"""The GPU that a stage of this process computes on, locked as those of launched ranks are."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tasks.runtime.launch.devices import (
    VISIBLE,
    check_usable,
    gpus_visible,
    hold_devices,
    host_devices,
)


class OwnGPU:
    """One of the host's GPUs `names`, locked when its number is asked for first.

    A process keeps a CUDA context, some hundred MB, on every GPU that it has ever used, so the
    stage before is followed on its GPU where that is free.
    """

    last: str | None = None

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
            self._take(sorted(self._names, key=lambda name: name != OwnGPU.last))
            torch.cuda.set_device(self._names.index(str(self._name)))
        return self._names.index(str(self._name))

    def give_back(self) -> str | None:
        """Frees the memory that torch keeps for reuse and unlocks the GPU; returns its name."""
        import torch

        if torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
        self._lock.close()
        name, self._name = self._name, None
        return name

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Gives the GPU back while the block runs, and then waits for the same one again.

        Its tensors stay there. Nobody holds a GPU while waiting for more: two processes, each with
        one that the other needs, would wait forever.
        """
        name = self.give_back()
        yield
        if name is not None:
            self._take([name])

    def _take(self, names: list[str]) -> None:
        (self._name,) = self._lock.enter_context(hold_devices(1, names))
        OwnGPU.last = self._name


_stage: OwnGPU | None = None


@contextmanager
def own_gpu() -> Iterator[None]:
    """While the block runs, `distributed.device` is a GPU that no other run uses, or the CPU.

    Does nothing on hosts without GPUs.
    """
    global _stage
    if not (names := host_devices()):
        yield
        return
    from dynolab import distributed

    around, _stage = _stage, OwnGPU(names)
    try:
        with distributed.gpu_chosen_by(_stage.number):
            yield
    finally:
        _stage.give_back()
        _stage = around


@contextmanager
def gpu_lent_to_ranks() -> Iterator[None]:
    """While the block runs, the stage of this process holds no GPU."""
    with ExitStack() as lending:
        if _stage is not None:
            lending.enter_context(_stage.lent())
        yield
