"""A platform that stands for all tests of a file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.faults.standing import Standing, standing
from tests.flows.lab import Lab

LATER = ("preference", "probe", "report")


@pytest.fixture(scope="module")
def shared_platform(
    tmp_path_factory: pytest.TempPathFactory, undisturbed: Lab
) -> Iterator[Standing]:
    lab = Lab(tmp_path_factory.mktemp("platform")).adopt(undisturbed, without=LATER)
    with standing(lab) as running:
        yield running


@pytest.fixture
def platform(shared_platform: Standing) -> Standing:
    """The platform with all results up to the finetuned model, and nothing at work."""
    shutil.rmtree(shared_platform.lab.home / "store" / "stages" / "preference", ignore_errors=True)
    shared_platform.clear()
    return shared_platform
