"""A platform that stands for all tests of a file, on a host with two GPUs by name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from tasks.runtime.launch import devices
from tests.faults.standing import GPUS, Standing, standing
from tests.flows.lab import Lab

LATER = ("preference", "probe", "report")


@pytest.fixture(scope="module")
def shared_platform(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: Lab
) -> Iterator[Standing]:
    lab = Lab(tmp_path_factory.mktemp("platform")).adopt(undisturbed, without=LATER)
    with patch.dict(os.environ, {devices.LISTED: ",".join(GPUS)}), standing(lab) as running:
        yield running


@pytest.fixture
def platform(shared_platform: Standing) -> Standing:
    """The platform with all results up to the finetuned model, and nothing at work."""
    shutil.rmtree(shared_platform.lab.home / "store" / "stages" / "preference", ignore_errors=True)
    shared_platform.clear()
    return shared_platform
