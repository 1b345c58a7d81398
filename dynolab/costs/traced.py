"""What the tensors of one micro-batch take: its forward and backward pass without numbers."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from dynolab.data.batches import TokenBatch, Totals
from dynolab.data.packing import PackedBatch
from dynolab.likelihood.decoder import count_parts, logits_of, read_parts
from dynolab.likelihood.layouts import response_hidden
from dynolab.likelihood.token_logps import causal_model, token_logps
from dynolab.training.adapters import activations_checkpointed, prepare_checkpointing


@dataclass(frozen=True)
class MicroBatch:
    """Sizes of one forward: `rows` padded to `length`, and the response tokens in them."""

    rows: int
    length: int
    responses: int


@dataclass(frozen=True)
class Activations:
    """Bytes above weights and their gradients, in a forward and backward of a micro-batch.

    - `most`: at once.
    - `decoder`: by the decoder for its backward, when that begins.
    """

    most: int
    decoder: int


def activation_bytes(
    build: Callable[[int, torch.dtype], nn.Module],
    layers: int,
    batch: MicroBatch,
    *,
    dtype: torch.dtype = torch.float32,
    products: bool = False,
    checkpoint: bool = False,
    backward: bool = True,
) -> Activations:
    """Traces a forward and a backward of a micro-batch, or the forward alone.

    The passes run on fake tensors, which have shapes and no numbers, with few layers:
    `A(n) = A(2) + (n − 2) (A(4) − A(2)) / 2`, as all layers are alike.

    **Arguments:**

    - `build`: makes the model with so many layers; called where tensors are fake.
    - `products`: attention forms all products, `length²` numbers a head, as it does on GPUs where
      results are reproducible; else it is torch's fused one.
    - `checkpoint`: layers' activations are computed again.

    Checked against the bytes of real tensors: `tests/costs/test_traced.py`.
    """
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.autograd.set_multithreading_enabled(False),  # here are the modes that see tensors
    ):
        few, more = (
            trace(
                build(count, dtype).eval(),
                batch,
                products=products,
                checkpoint=checkpoint,
                backward=backward,
            )
            for count in FEW
        )

    def at(low: int, high: int) -> int:
        return low + (layers - FEW[0]) * (high - low) // (FEW[1] - FEW[0])

    return Activations(at(few.most, more.most), at(few.decoder, more.decoder))


FEW = 2, 4
"""Layers of the two models that are traced."""


def trace(
    model: nn.Module,
    batch: MicroBatch,
    *,
    products: bool = False,
    checkpoint: bool = False,
    backward: bool = True,
) -> Activations:
    """As `activation_bytes`, of the model itself, whose tensors may be real."""
    if checkpoint:
        prepare_checkpointing(causal_model(model))
    tokens = zero_tokens(batch, causal_model(model))
    hooks = [
        weight.register_post_accumulate_grad_hook(_drop)
        for weight in model.parameters()
        if weight.requires_grad
    ]
    attention = sdpa_kernel(SDPBackend.MATH) if products else nullcontext()
    with (
        LiveBytes(uncounted=[*model.parameters(), *model.buffers()]) as live,
        attention,
        torch.set_grad_enabled(backward),
    ):
        kept_bytes = forward_backward(model, tokens, lambda: live.now)
    for hook in hooks:
        hook.remove()
    return Activations(live.most, kept_bytes)


def forward_backward(
    model: nn.Module, tokens: TokenBatch, after_decoder: Callable[[], int] = lambda: 0
) -> int:
    """Adds the gradient of a batch's log-likelihood; returns what `after_decoder` gave."""
    causal = causal_model(model)
    with activations_checkpointed(model):
        hidden = response_hidden(causal, tokens)
        result = after_decoder()
        parts = count_parts(causal, hidden)
        head = partial(logits_of, causal)
        logps = read_parts(head, hidden, tokens, token_logps, parts)
    if torch.is_grad_enabled():
        logps.sum().backward()
    return result


def seconds_of(model: nn.Module, batch: MicroBatch) -> float:
    """Of a forward and a backward on this machine, if it does nothing else: the quicker of two
    after a first one, by the processor time of the thread that computes."""
    tokens = zero_tokens(batch, causal_model(model))
    seconds = []
    for _ in range(3):
        began = time.thread_time()
        forward_backward(model, tokens)
        seconds.append(time.thread_time() - began)
        model.zero_grad()
    return min(seconds[1:])


def seconds_together(models: Sequence[nn.Module], batch: MicroBatch) -> float:
    """Of the slowest of some models whose passes run at once, as those of ranks on CPUs do.

    Each has its share of the cores, as a rank has; one alone has torch's number of threads.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

    def run(model: nn.Module) -> float:
        torch.set_num_threads(max(1, (cores or 1) // len(models)))  # of this thread's passes
        return seconds_of(model, batch)

    if len(models) == 1:
        return seconds_of(models[0], batch)
    with ThreadPoolExecutor(len(models)) as pool:
        return max(pool.map(run, models))


def _drop(weight: Tensor) -> None:
    weight.grad = None


def zero_tokens(batch: MicroBatch, causal: Any) -> TokenBatch:
    """A batch of these sizes, packed if the model takes masks of that kind (Bloom does not); all
    its tokens are number 0."""
    rows, length = torch.zeros(2, batch.rows, batch.length, dtype=torch.long)
    tokens = torch.zeros(batch.responses, dtype=torch.long)
    sequences = torch.zeros(batch.rows, dtype=torch.long)
    plain = TokenBatch(
        input_ids=rows,
        attention_mask=rows,
        position_ids=length,
        sequence=tokens,
        position=tokens,
        token=tokens,
        example=sequences,
        side=sequences,
        ids=(),
        totals=Totals(batch.rows, batch.responses, batch.rows),
    )
    if not causal._supports_attention_backend:
        return plain
    return PackedBatch(**vars(plain), row=sequences, segment=rows)


class LiveBytes(TorchDispatchMode):
    """While open, `most` is the largest sum of bytes of the storages that operations touched.

    Unlike resident memory it holds no libraries, and nothing that an allocator keeps for later.

    **Arguments:** `uncounted`: tensors that do not count, such as a model's weights; `dtype`: only
    tensors of it count.
    """

    def __init__(self, uncounted: Iterable[Tensor] = (), dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._dtype = dtype
        self.now = self.most = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in uncounted}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter((args, kwargs, result)):
            if (
                isinstance(value, Tensor)
                and value.device.type != "meta"
                and self._dtype in (None, value.dtype)
            ):
                self.count(value.untyped_storage())
        return result

    def count(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage until it is released."""
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._release, key, storage.nbytes())

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
