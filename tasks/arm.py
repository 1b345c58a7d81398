"""Stage `arm`: a preference training of a comparison, in which a diverged one is a result too."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dynolab.data.arm_results import ArmFacts, Divergence, Start
from dynolab.data.results import MetricsLine
from dynolab.data.rows import ProbeRow, read_rows, write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged, RankFailed
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES, RowObjectiveConfig
from dynolab.squeezing.alarm import AlarmConfig
from dynolab.training.config import TrainConfig
from tasks.filter import FilterConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.training import run_training

DIVERGENCE = "divergence.json"
WATCHED = ("chosen", "rejected")


class ArmConfig(BaseModel):
    """One way of preference training."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    objective: RowObjectiveConfig = DPOConfig()
    start: Start = Field(
        "sft", description="Model that it starts from: extended is SFT on both answers of a pair."
    )
    rejected: Literal["given", "sampled"] = Field(
        "given", description="Rejected answers: the data's, or the start's own samples (on-policy)."
    )
    filter: FilterConfig | None = Field(
        None, description="Leaves the worst pairs of an audit of the start out."
    )
    alarm: AlarmConfig | None = Field(None, description="Ends training where the gap has grown.")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="In place of the shared one, for a loss whose push has another size.",
    )

    @property
    def facts(self) -> ArmFacts:
        """What pages say of it."""
        return ArmFacts(
            objective=self.objective, start=self.start, rejected=self.rejected,
            filtered_by=self.filter and self.filter.by, dropped=self.filter and self.filter.drop,
            alarm=self.alarm, learning_rate=self.learning_rate,
        )  # fmt: skip

    def training(self, shared: TrainConfig, seed: int) -> TrainConfig:
        """The arm's training with one seed.

        **Raises** `ConfigError` for an objective that compares no answers.
        """
        if self.objective.name not in PAIR_OBJECTIVES:
            raise ConfigError(
                "objective", self.objective.name,
                f"compares no answers; choose one of {', '.join(sorted(PAIR_OBJECTIVES))}",
            )  # fmt: skip
        changes: dict[str, Any] = {"objective": self.objective.model_dump(), "seed": seed}
        if self.alarm is not None:
            changes["alarm"] = self.alarm.model_dump()
        known = TrainConfig.model_validate(shared.model_dump() | changes)
        if self.learning_rate is None:
            return known
        optimizer = known.optimizer.model_copy(update={"learning_rate": self.learning_rate})
        return known.model_copy(update={"optimizer": optimizer})


def train_arm(work: Work[TrainConfig]) -> dict[str, float]:
    """Trains input `model` on the rows of input `data`, as a preference stage does.

    Of the kinds of answers those are watched that arms are compared by: the pair's own, and y*.

    Results: those of a training. Where it diverges, in a step or only in what a probe finds: what
    was logged and probed until then, no `model/`, and `divergence.json`; the batch that did it is
    among the stage's logs.

    **Raises** what any other failure of a training raises.
    """
    try:
        data = work.input_folder("data")
        metrics = run_training(work, data / "train.jsonl", _pairs_own(work, data))
        found = _lost(_logged(work))
    except (Diverged, RankFailed) as error:
        if not (work.logs / DIVERGED).exists():
            raise
        metrics = {}
        done = max((line.step for line in _logged(work)), default=0)
        found = Divergence(step=done, reason=str(error))
    if found is None:
        return metrics | {"diverged": 0.0}
    shutil.rmtree(work.output / "model", ignore_errors=True)
    (work.output / DIVERGENCE).write_text(found.model_dump_json(indent=1))
    work.tracker.artifact(work.output / DIVERGENCE, "report")
    work.step = found.step
    return metrics | {"diverged": 1.0}


def _pairs_own(work: Work[TrainConfig], data: Path) -> Path:
    """The watched rows without other kinds: reading those takes longer than training."""
    file = work.scratch / "probes.jsonl"
    rows = read_rows(data / "probes.jsonl", ProbeRow)
    write_rows(file, (row for row in rows if row.kind in WATCHED))
    return file


def _logged(work: Work[TrainConfig]) -> list[MetricsLine]:
    file = work.output / "metrics.jsonl"
    return list(read_rows(file, MetricsLine)) if file.exists() else []


def _lost(lines: Sequence[MetricsLine]) -> Divergence | None:
    """Where a probe found likelihoods that are no numbers, though every step's loss was one."""
    for line in lines:
        for name, value in line.metrics.items():
            if name.startswith("probe/") and not math.isfinite(value):
                return Divergence(step=line.step, reason=f"{name} = {value} at a probe")
    return None


ARM = Stage("arm", 1, train_arm)
