"""Stage `audit`: what every preference pair would do to its chosen answer, before any training."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from dynolab.data.encode import EncodedExample, Encoder
from dynolab.data.rows import Example, read_rows
from dynolab.errors import ConfigError
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES, RowObjectiveConfig
from dynolab.results.audit import PairAudit
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import load_encoder, load_policy


class AuditConfig(StageConfig):
    """Which pairs are audited, and in which batches."""

    pairs: int | None = Field(
        None, ge=1, description="Training pairs, from the first; default: all."
    )
    heldout_pairs: int | None = Field(
        None, ge=0, description="Held-out pairs, from the first; default: all."
    )
    batch_tokens: int = Field(4_096, ge=1, description="Padded tokens of one forward-mode pass.")


class AuditJob(AuditConfig):
    """The audit for one training."""

    objective: RowObjectiveConfig = Field(
        DPOConfig(), description="Loss of the audited step; the model is its own reference."
    )

    @model_validator(mode="after")
    def _compares_answers(self) -> AuditJob:
        if self.objective.name not in PAIR_OBJECTIVES:
            raise ConfigError(
                "objective",
                self.objective.name,
                "pushes no answer down; choose a loss on pairs: "
                f"{', '.join(sorted(PAIR_OBJECTIVES))}",
            )
        return self


def audit(work: Work[AuditJob]) -> dict[str, float]:
    """Reads inputs `data` and `model`, the model that preference training starts from.

    Results: `audit.jsonl`, training pairs first.
    """
    from dynolab.audit.audit import audit_pairs
    from dynolab.objectives import build_objective

    config = work.config
    folder = work.input_folder("model", "model")
    encoder = load_encoder(folder)
    pairs = read_pairs(work, encoder, "train", config.pairs)
    heldout = read_pairs(work, encoder, "heldout", config.heldout_pairs)
    objective: Any = build_objective(config.objective)
    with work.shown(len(pairs) + len(heldout)) as progress:
        rows = audit_pairs(
            load_policy(folder, stage="audit"),
            pairs,
            objective,
            heldout=heldout,
            batch_tokens=config.batch_tokens,
            on_pair=progress.update,
        )
        work.write_tables(audit=rows)
    work.log_tables(audit=rows)
    return work.log_metrics(_metrics(rows) | encoder.counts.as_metrics())


def read_pairs(
    work: Work[Any], encoder: Encoder, split: str, first: int | None
) -> list[EncodedExample]:
    """Encodes the first pairs of a split of input `data`; leaves out those that the encoder drops.

    **Raises** `ConfigError` for rows without a rejected answer.
    """
    from dynolab.data.batches import CHOSEN, REJECTED
    from dynolab.training.examples import check_sides

    pairs = list(islice(read_rows(work.input_folder("data") / f"{split}.jsonl", Example), first))
    check_sides(pairs, (CHOSEN, REJECTED), "audit")
    return [example for row in pairs if (example := encoder.example(row)) is not None]


def _metrics(rows: list[PairAudit]) -> dict[str, float]:
    """Means over the training pairs, in nats for a step of learning rate 1."""
    training = [row for row in rows if row.split == "train"]
    names = ("pull_up", "push_down", "force", "from_all")
    means = {f"audit/{n}": float(np.mean([getattr(row, n) for row in training])) for n in names}
    return means | {"audit/pushed_down": float(np.mean([row.push_down < 0 for row in training]))}


AUDIT = Stage("audit", 3, audit, operational=frozenset({"batch_tokens"}))
