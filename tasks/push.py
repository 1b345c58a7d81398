"""Stage `push`: where probability goes when an answer is pushed down, and what explains it."""

from __future__ import annotations

from pydantic import Field

from tasks.audit import read_pairs
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_encoder, load_model


class PushConfig(StageConfig):
    """Which answers are pushed down, and how far."""

    pairs: int = Field(24, ge=2, description="Training pairs, from the first.")
    fall: float = Field(
        0.1, gt=0, description="First-order fall of a pushed answer, in nats per token."
    )


def push_answers(work: Work[PushConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`. Computes in float64, because the changes are small.

    Results: `pushes.jsonl`, `explained.jsonl`, `ranks.jsonl`.
    """
    import torch

    from dynolab.forces import PolicyFunction
    from dynolab.squeezing.pushes import Tally, pushes

    config = work.config
    folder = work.input_folder("model", "model")
    with work.shown(2 * config.pairs) as progress:
        pairs = read_pairs(work, load_encoder(folder), "train", config.pairs)
        model, _ = load_model(folder)
        policy, tally = PolicyFunction(model, torch.float64), Tally()
        for number, push in enumerate(pushes(policy, pairs, config.fall), start=1):
            tally.add(push)
            progress.update(number)
        left = list(tally.left_over())
        work.write_tables(pushes=tally.rows, explained=left, ranks=tally.rank_changes())
    metrics = {f"left_over/{row.answer}/{row.picture}": row.left for row in left}
    work.log_tables(pushes=tally.rows, explained=left)
    return work.log_metrics(metrics) | {"pairs": float(len(pairs))}


PUSH = Stage("push", 2, push_answers)
