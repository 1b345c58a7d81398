"""Probe rows that could not be made."""

from __future__ import annotations

from dynolab.data.probes.build import Watched
from dynolab.data.rows import Row, Split


class Missing(Row):
    """A row that is not there, and why."""

    pair_id: str
    split: Split
    kind: str
    reason: str

    @classmethod
    def of(cls, watched: Watched, kind: str, reason: str) -> Missing:
        """The row of a pair."""
        return cls(pair_id=watched.example.id, split=watched.split, kind=kind, reason=reason)
