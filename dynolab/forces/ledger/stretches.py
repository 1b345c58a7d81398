"""Steps between whose ends slopes lie on a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from dynolab.forces.function.weights import Weights
from dynolab.training.step_record import StepRecord


@dataclass(frozen=True)
class Stretch:
    """Steps at both ends of which, and nowhere between, slopes are taken.

    Between them slopes lie on a line. What that leaves unexplained of the stretch's change is
    known at its first step alone, which is charged with it.

    **Arguments:** `steps`: how many; `place`: of a step among them, 0 the first; `before`: the
    weights before that first step, by default those before this one.
    """

    steps: int = 1
    place: int = 0
    before: Weights | None = None

    @property
    def is_last(self) -> bool:
        """Whether the stretch ends with this step."""
        return self.place == self.steps - 1

    @property
    def middle(self) -> float:
        """Where the step's middle lies between the stretch's ends, from 0 to 1."""
        return (self.place + 0.5) / self.steps


ONE_STEP = Stretch()


def in_stretches(records: Iterable[StepRecord], steps: int) -> Iterator[tuple[StepRecord, Stretch]]:
    """Records, the last one first, each with its stretch of so many steps; the first has the rest.

    So many records are there at once; tensors of those in files are read where they are needed.
    """
    remaining = iter(records)
    while members := list(islice(remaining, steps)):
        for number, record in enumerate(members, start=1):
            yield record, Stretch(len(members), len(members) - number, members[-1].before)
