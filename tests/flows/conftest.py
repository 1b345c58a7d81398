"""What the tests of this folder share."""

from __future__ import annotations

import pytest

from tests.flows.analysed import Analysed


@pytest.fixture(scope="session")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    """Small results for force analyses, made in this process."""
    return Analysed(tmp_path_factory.mktemp("analysed") / "home")
