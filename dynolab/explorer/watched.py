"""The answers that a training watched, with what became of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynolab.data.rows import ProbeRow, Split, read_rows
from dynolab.grouping import grouped
from dynolab.probes.paths import complete_pairs
from dynolab.results.study import ProbeScore


@dataclass(frozen=True)
class Answer:
    """A watched answer, and log π of it before and after the training, in nats."""

    row: ProbeRow
    start: float
    end: float

    @property
    def change(self) -> float:
        """Δ log π: negative where the answer fell."""
        return self.end - self.start


def read_answers(
    file: Path, watched: Sequence[ProbeRow], *, on_pairs: bool
) -> dict[str, list[Answer]]:
    """The watched answers of every kind, the one that fell most first.

    **Arguments:** `on_pairs`: those of pairs alone of which both answers were scored, as the
    study's page has them of a training on pairs.
    """
    if not watched:  # there is no file then
        return {}
    ends: dict[tuple[str, str], list[float]] = {}
    scores = list(read_rows(file, ProbeScore))
    for score in complete_pairs(scores) if on_pairs else scores:
        path = ends.setdefault((score.pair_id, score.kind), [score.logp, score.logp])
        path[1] = score.logp
    kinds = grouped(
        (row.kind, Answer(row, *ends_of))
        for row in watched
        if (ends_of := ends.get((row.pair_id, row.kind)))
    )
    return {
        kind: sorted(of_kind, key=lambda answer: answer.change) for kind, of_kind in kinds.items()
    }


def split_of(answers: Sequence[Answer], split: Split | Literal["all"]) -> list[Answer]:
    """The answers of a split, in their order."""
    return [answer for answer in answers if split in ("all", answer.row.split)]
