from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.report.study.page import write_report
from tests.report.parsed import words_of
from tests.report.synthetic import study


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    write_report(study(), place)
    return place


@pytest.fixture(scope="package")
def words(folder: Path) -> str:
    """What the report says."""
    return words_of(folder / "report.html")
