"""What the ranks of a training send to each other, in bytes."""

from __future__ import annotations

from dynolab.costs.memory import FP32, LIVE, bytes_of, recorded_states
from dynolab.costs.shape import ModelShape
from dynolab.training.config import LoopConfig
from dynolab.training.deepspeed_engine import zero_stage


def sent_bytes(config: LoopConfig, shape: ModelShape, probe_forwards: int = 0) -> int:
    """What each of R ranks sends in a training of N weights of which T are trained.

    In a ring a reduce-scatter or an all-gather of x bytes sends x (R − 1) / R of each rank, an
    all-reduce twice as much. With w bytes a weight, a step of one micro-batch has

    - ZeRO-0, as DDP: an all-reduce of the gradients, `4 T`;
    - ZeRO-1 and 2: the same, and an all-gather of the weights that were updated, `w T`. In the
      paper the gradients have a reduce-scatter, half of that; DeepSpeed all-reduces its buckets
      (`use_multi_rank_bucket_allreduce`);
    - ZeRO-3: a reduce-scatter of the gradients, `4 T`, and all-gathers of all weights, `w N`, for
      the forward and for the backward: in fp32 1.5 times what DDP sends. DeepSpeed keeps up to
      `LIVE` weights for the backward, so that a smaller model has one, but for the first step.

    Of a micro-batches ZeRO-2 and 3 send the gradients a times, ZeRO-3 the weights, too. Beside
    steps, ranks send what a record has (all-reduces, of ZeRO-3 all-gathers), and under ZeRO-3 the
    weights for each forward of a probe and for each rollout. The reference is scored on whole
    weights.

    Source: Rajbhandari et al., ZeRO (2020), section 7, https://arxiv.org/abs/1910.02054. Checked:
    `sending_plan_error` of `tests.benchmarks.size`.

    **Arguments:** `probe_forwards`: of a rank, in the whole training.
    """
    ranks, stage, a = config.engine.ranks, zero_stage(config), config.accumulation
    gradients, trained = FP32 * shape.trained, bytes_of(config) * shape.trained
    weights = bytes_of(config) * shape.parameters
    record = (2 + recorded_states(config.optimizer)) * FP32 * shape.trained
    recorded = {*config.record_steps, *filter(config.observes, range(config.steps))}
    if stage == 3:
        twice = config.steps * a if shape.parameters > LIVE else 1
        updates = getattr(config, "updates_per_rollout", None)
        rollouts = -(-config.steps // updates) if updates else 0
        step = a * (gradients + weights)
        beside = (twice + probe_forwards + rollouts) * weights
    else:
        step = 2 * (a if stage == 2 else 1) * gradients + (trained if stage else 0)
        record, beside = 2 * record if stage else 0, 0
    sent = config.steps * step + len(recorded) * record + beside
    return sent * (ranks - 1) // ranks
