"""Chooses where the progress of this process is shown."""

from __future__ import annotations

import sys
from typing import IO

from tasks.runtime.track.prefect_progress import PrefectProgress, inside_run
from tasks.runtime.track.progress import CombinedProgress, PlainProgress, Progress, RichProgress


def make_progress(stream: IO[str] | None = None) -> Progress:
    """What fits here: rich lines on a terminal, else plain ones; Prefect's too in one of its runs.

    `stream` is standard error where it is not given, so that results on standard output stay
    clean.
    """
    stream = stream or sys.stderr
    shown: Progress = RichProgress(stream) if stream.isatty() else PlainProgress(stream)
    return CombinedProgress([shown, PrefectProgress()]) if inside_run() else shown
