"""Probe rows that could not be made."""

from __future__ import annotations

from dynolab.data.probes.build import Watched
from dynolab.data.rows import Row, Split


class Missing(Row):
    """A probe row that could not be made, and why."""

    pair_id: str
    split: Split
    kind: str
    reason: str

    @classmethod
    def of(cls, watched: Watched, kind: str, reason: str) -> Missing:
        """Records that a kind of a watched pair is missing."""
        return cls(pair_id=watched.example.id, split=watched.split, kind=kind, reason=reason)
