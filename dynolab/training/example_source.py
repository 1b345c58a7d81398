"""Where a training's examples come from: rows that are there, or completions sampled on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from dynolab import distributed
from dynolab.data.batches import draw
from dynolab.data.encode import EncodedExample
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import Objective
from dynolab.training.engine import Engine
from dynolab.training.job import TrainJob
from dynolab.training.reference import SideLogps, score_sides
from dynolab.training.reference_cache import kept_reference
from dynolab.training.step_batch import ScoredRow, StepExample


@dataclass(frozen=True)
class Drawn:
    """The examples of one optimizer step, and what is to be logged of their making.

    There are none where the step has nothing to learn from: it then moves no weight.
    """

    examples: Sequence[StepExample]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Source(Protocol):
    """Gives every step its examples, the same ones on every rank. All methods are collective."""

    @property
    def temperature(self) -> float:
        """At which groups are sampled and trained; 1 for rows."""

    def begin(self, logits: ResponseLogits) -> None:
        """Sees the initial weights, whole, before the engine has them."""

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Examples of the step that follows `step` others."""

    def save(self, step: int, folder: Path) -> None:
        """Writes what the steps from `step` on need and the weights do not tell."""

    def load(self, step: int, folder: Path) -> None:
        """Reads what `save` wrote for the same step."""


class Offline:
    """Rows in seeded permutations (`draw`); the reference is scored once, at the beginning."""

    temperature = 1.0

    def __init__(
        self, examples: Sequence[EncodedExample], objective: Objective, job: TrainJob, pad_id: int
    ) -> None:
        self._examples, self._objective = examples, objective
        self._job, self._config = job, job.config
        self._pad_id = pad_id
        self._reference: list[SideLogps] = [{} for _ in examples]

    def begin(self, logits: ResponseLogits) -> None:
        """Scores the reference, which is the initial policy."""
        if not self._objective.needs_reference:
            return
        sides, batch = self._objective.sides, self._config.micro_examples
        score = partial(score_sides, logits, self._examples, sides, self._pad_id, batch)
        folder = self._job.reference_cache
        if folder is None:
            self._reference = score()
            return
        weights = distributed.gather(self._job.input_digests() if distributed.rank() == 0 else {})[
            0
        ]
        made_by = {**weights, "batch": batch, "attention": self._config.engine.attention}
        self._reference = kept_reference(folder, score, self._examples, sides, made_by)

    def draw(self, engine: Engine, step: int) -> Drawn:
        """The step's rows; weights do not matter."""
        rows = draw(step, self._config.batch_size, len(self._examples), self._config.seed)
        return Drawn([ScoredRow(self._examples[row], self._reference[row]) for row in rows])

    def save(self, step: int, folder: Path) -> None:
        """Nothing: the step's number tells its rows."""

    def load(self, step: int, folder: Path) -> None:
        """Nothing."""
