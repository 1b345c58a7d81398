"""Sources of training examples: fixed rows, or completions sampled during training."""

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
from dynolab.training.reference_cache import cached_reference
from dynolab.training.step_batch import ScoredRow, StepExample


@dataclass(frozen=True)
class Drawn:
    """The examples of one optimizer step, and metrics of how they were made.

    If there are none, the step updates no weights.
    """

    examples: Sequence[StepExample]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Source(Protocol):
    """Gives every step its examples, the same on every rank. All methods are collective."""

    @property
    def temperature(self) -> float:
        """Temperature at which groups are sampled and trained; 1 for rows."""

    def begin(self, logits: ResponseLogits) -> None:
        """Reads the full initial weights before the engine takes them."""

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Returns the examples of 0-based `step`."""

    def save(self, step: int, folder: Path) -> None:
        """Writes the state, besides the weights, that the steps from `step` on need."""

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
        mine = self._job.input_digests() if distributed.rank() == 0 else {}
        digests = distributed.gather(mine)[0]
        engine = self._config.engine
        arithmetic = {"batch": batch, "attention": engine.attention, "dtype": engine.dtype}
        made_by = {**digests, **arithmetic}
        self._reference = cached_reference(folder, score, self._examples, sides, made_by)

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Returns the step's rows; does not use the engine."""
        rows = draw(step, self._config.batch_size, len(self._examples), self._config.seed)
        return Drawn([ScoredRow(self._examples[row], self._reference[row]) for row in rows])

    def save(self, step: int, folder: Path) -> None:
        """No-op: the step number determines its rows."""

    def load(self, step: int, folder: Path) -> None:
        """No-op."""
