"""What the tensors of a training or an analysis take on each rank and in main memory, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from dynolab.costs.machines import GPUS_PER_HOST
from dynolab.costs.shape import ModelShape
from dynolab.costs.traced import Activations
from dynolab.training.config import LoopConfig, OptimizerConfig
from dynolab.training.deepspeed_engine import zero_stage
from dynolab.training.engine import SECOND_MOMENT

FP32 = 4

BUCKET = 5 * 10**8
"""Gradients that DeepSpeed's ZeRO sends at once (`reduce_bucket_size`), in numbers."""

LIVE = 10**9
"""Weights that ZeRO-3 keeps gathered between a forward and its backward, in numbers."""


@dataclass(frozen=True)
class TrainingBytes:
    """Most bytes of tensors at once.

    - `rank`: on the device of a rank.
    - `host`: of a host's ranks in main memory, beside what their devices are if these are CPUs.
    """

    rank: int
    host: int


def states(optimizer: OptimizerConfig) -> int:
    """Tensors of a weight's size that the optimizer keeps."""
    if optimizer.name == "adamw":
        return 2
    return int(optimizer.name == "rmsprop") + int(optimizer.momentum > 0)


def recorded_states(optimizer: OptimizerConfig) -> int:
    """Those in the record of a step: before it, and the second moment after it."""
    return states(optimizer) + (optimizer.name in SECOND_MOMENT)


def training_bytes(
    config: LoopConfig, shape: ModelShape, activations: Activations, *, gpus: bool
) -> TrainingBytes:
    """What a training takes with these activations of its largest micro-batch.

    On CPUs a rank's own copies in main memory add to what its device takes.
    """
    activation_bytes, copies = kept_bytes(config, shape), copies_of(config, shape)
    working = working_bytes(config, shape, activations, gpus=gpus)
    if not gpus:
        later = max(working + copies.in_step, copies.after)
        return TrainingBytes(activation_bytes + copies.every + later, 0)
    together = min(config.engine.ranks, GPUS_PER_HOST)
    loading = FP32 * shape.parameters * together
    copied = copies.every * together + max(copies.in_step, copies.after)
    return TrainingBytes(activation_bytes + working, max(loading, copied))


def kept_bytes(config: LoopConfig, shape: ModelShape) -> int:
    """What a rank keeps between steps, of N weights of which T are trained, on R ranks.

    With w bytes a weight (4, or 2 in bf16) and s optimizer states:

    - ZeRO-0: `w N + 4 s T`;
    - ZeRO-1 and 2: `w N + 4 (1 + s) T / R`, as the weights that the optimizer moves are a copy;
    - ZeRO-3: `w N / R + 4 (2 + s) T / R + 4 BUCKET`, gradients among them.

    Checked: `memory_plan_error` of `tests.benchmarks.size`.
    """
    stage, s = zero_stage(config), states(config.optimizer)
    w, part = bytes_of(config), FP32 * shape.trained // config.engine.ranks
    if stage == 0:
        return w * shape.parameters + s * FP32 * shape.trained
    if stage < 3:
        return w * shape.parameters + (1 + s) * part
    return w * shape.parameters // config.engine.ranks + (2 + s) * part + FP32 * BUCKET


def working_bytes(
    config: LoopConfig, shape: ModelShape, activations: Activations, *, gpus: bool
) -> int:
    """What comes and goes in a step: the largest of loss, backward, reduction and update.

    With G = 4 T bytes of gradients and P = G / R those of a rank's part, A the activations at the
    loss, K those that the decoder kept, h the head's gradient:

    - ZeRO-0: `A`, with G where micro-batches are accumulated; `G` and what is sent at once, as much
      again, at most a bucket; `G` and a layer's activations;
    - ZeRO-1 and 2: `A`; from the first gradient on a bucket of `w BUCKET`, first with `K + h`, then
      with a copy of what is sent, and in bf16 P; in the update `2 P`. Where micro-batches are
      accumulated, G or P beside them;
    - ZeRO-3: the gathered weights, with `A` or a copy of what is sent.

    RMSprop makes a root of P more in its update; of the largest weight in ZeRO-0 on CPUs, which
    updates one after another. Checked as `kept_bytes` is.
    """
    stage, w = zero_stage(config), bytes_of(config)
    gradients, part = FP32 * shape.trained, FP32 * shape.trained // config.engine.ranks
    sent = (FP32 if w == FP32 else FP32 + w) * min(shape.trained, BUCKET)
    head = w * shape.head
    root = part if stage or gpus else FP32 * shape.largest
    update = root if config.optimizer.name == "rmsprop" else 0
    again = config.accumulation > 1
    if stage == 0:
        reduction = sent if config.engine.ranks > 1 else 0
        layer = activations.decoder // shape.layers
        loss = activations.most + again * gradients
        return max(loss, gradients + max(reduction, layer, update))
    gradient_bytes = again * (gradients if stage == 1 else part)
    if stage < 3:
        bucket = w * BUCKET if config.engine.kind == "deepspeed" else 0
        full = shape.trained > BUCKET  # sends while activations are still kept
        backward = bucket + activations.decoder + max(head, sent if full else 0)
        reduction = bucket + sent + (part if w < FP32 else 0)
        return max(gradient_bytes + max(activations.most, backward, reduction), 2 * part + update)
    live = w * min(shape.parameters, LIVE)
    return max(live + activations.most, live + sent, part + update)


@dataclass(frozen=True)
class Copies:
    """Copies of weights and of the optimizer's tensors in main memory.

    `every`: of every rank, always; `in_step`: of rank 0 while a step runs; `after`: of rank 0 after
    it, or at the end.
    """

    every: int
    in_step: int
    after: int


def copies_of(config: LoopConfig, shape: ModelShape) -> Copies:
    """What ranks copy to main memory of T trained weights with s optimizer states each.

    In bf16 each rank keeps `4 T`, the weights before they were rounded. Rank 0 gathers `4 T` to
    save the model, `4 N` where adapters are merged into it. Before a recorded step it gathers
    `4 T (1 + s)`; after it has the weights again and r = `recorded_states`, `4 T (2 + r)`.

    Checked as `kept_bytes` is.
    """
    weight_bytes = FP32 * shape.trained
    s, r = states(config.optimizer), recorded_states(config.optimizer)
    every = weight_bytes if bytes_of(config) < FP32 else 0
    saved = FP32 * shape.parameters if config.lora is not None else weight_bytes
    if not config.record_steps and config.ledger is None:
        return Copies(every, in_step=0, after=saved)
    return Copies(every, in_step=(1 + s) * weight_bytes, after=max(saved, (2 + r) * weight_bytes))


def bytes_of(config: LoopConfig) -> int:
    """Bytes of a weight in a forward."""
    return 2 if config.engine.dtype == "bf16" else FP32


def ledger_copies(
    optimizer: OptimizerConfig, *, functionals: int, responses: int, every_step: bool = True
) -> int:
    """Copies of the weights that a ledger holds: `3 f + r + 11 + s` for f functionals at once, r
    responses of a batch and s `recorded_states`; a functional has one copy more where steps are
    left out. Functionals that do not fit wait on disk, so that a ledger needs those of one."""
    return (3 + (not every_step)) * functionals + responses + 11 + recorded_states(optimizer)
