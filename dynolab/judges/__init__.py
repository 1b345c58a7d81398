"""Judges which of two policies answers better, with intervals and agreement between judges."""

from dynolab.judges.contests import ExactJudge, Judge, contests, count
from dynolab.judges.win_rate import agreement, win_rate

__all__ = ["ExactJudge", "Judge", "agreement", "contests", "count", "win_rate"]
