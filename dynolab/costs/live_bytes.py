"""Bytes of the tensors that are alive at once, counted as operations read and make them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """While open, `most` is the largest sum of bytes of the storages that operations touched.

    Unlike resident memory it holds no libraries, and nothing that an allocator keeps for later.

    **Arguments:** `known`: tensors that do not count, such as a model's weights; `dtype`: only
    tensors of it count.
    """

    def __init__(self, known: Iterable[Tensor] = (), dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._dtype = dtype
        self.now = self.most = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_iter((args, kwargs, made)):
            if (
                isinstance(value, Tensor)
                and value.device.type != "meta"
                and self._dtype in (None, value.dtype)
            ):
                self._count(value.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._release, key, storage.nbytes())

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
