"""Stages of this process on the GPU: each locks it while it computes, and gives it back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch

from tasks.runtime.launch import devices
from tests.flows.analysed import Analysed


def run_stages(folder: Path) -> None:
    """Data, a base model and a training, whose stages compute in this process."""
    unlocked_at_the_end: list[bool] = []

    def note() -> None:
        unlocked_at_the_end.append(unlocked())

    with (
        patch.dict(os.environ, {devices.LISTED: "0"}),
        patch.object(tempfile, "tempdir", str(folder)),
        patch.object(torch.cuda, "empty_cache", note),
    ):
        os.environ.pop("DS_ACCELERATOR", None)
        Analysed(folder / "home")
        assert unlocked_at_the_end == [True, False, False]  # data need no GPU
        assert unlocked()


def unlocked() -> bool:
    """Whether anybody could lock the GPU now."""
    with ExitStack() as asked:
        return devices._lock("device-0", asked, wait=False) is not None


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield "stages of this process", run_stages
