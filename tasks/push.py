"""Stage `push`: what pushing an answer down does to a language model, and what explains it."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from tasks.audit import read_pairs
from tasks.runtime.stage import Stage
from tasks.runtime.track.tables import log_tables
from tasks.runtime.work import Work


class PushConfig(BaseModel):
    """Which answers are pushed down, and how far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pairs: int = Field(24, ge=2, description="Training pairs, the first ones.")
    fall: float = Field(
        0.1, gt=0, description="Nats per token that a pushed answer loses, to first order."
    )


def push_answers(work: Work[PushConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`. Arithmetic is float64: the changes are small.

    Results: `pushes.jsonl`, `explained.jsonl`, `ranks.jsonl`.
    """
    import torch

    from dynolab import distributed
    from dynolab.data.encode import Encoder
    from dynolab.data.rows import write_rows
    from dynolab.forces import PolicyFunction
    from dynolab.squeezing.pushes import Tally, pushes
    from models.language import folder_context, load_language_model, load_tokenizer

    began, config = time.monotonic(), work.config
    folder = work.input_folder("model", "model")
    with work.shown(2 * config.pairs) as progress:
        encoder = Encoder(load_tokenizer(folder), folder_context(folder), "drop")
        pairs = read_pairs(work, encoder, "train", config.pairs)
        model = load_language_model(folder, device=distributed.device())
        policy, tally = PolicyFunction(model, torch.float64), Tally()
        for number, push in enumerate(pushes(policy, pairs, config.fall), start=1):
            tally.add(push)
            progress.update(number)
        left = list(tally.left_over())
        write_rows(work.output / "pushes.jsonl", tally.rows)
        write_rows(work.output / "explained.jsonl", left)
        write_rows(work.output / "ranks.jsonl", tally.rank_changes())
    metrics = {f"left_over/{one.answer}/{one.picture}": one.left for one in left}
    work.tracker.log_metrics(metrics, 0)
    log_tables(work.tracker, {"pushes": tally.rows, "explained": left}, work.scratch)
    return metrics | {"pairs": float(len(pairs)), "seconds": time.monotonic() - began}


PUSH = Stage("push", 1, push_answers)
