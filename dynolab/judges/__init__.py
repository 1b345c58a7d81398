"""Judges which of two policies answers better, with intervals and agreement between judges."""

from dynolab.judges.contests import Judge, contests, count
from dynolab.judges.exact import ExactJudge
from dynolab.judges.win_rate import agreement, win_rate

__all__ = ["ExactJudge", "Judge", "agreement", "contests", "count", "win_rate"]
