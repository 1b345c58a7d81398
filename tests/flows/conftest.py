"""Servers and a finished small study that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime.services import MLFLOW, PREFECT, start_services
from tests.flows.analysed import Analysed
from tests.flows.lab import Lab


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead commands to a Prefect and an MLflow server of their own."""
    with start_services(tmp_path_factory.mktemp("servers")) as services:
        services.wait_ready()
        yield {
            "PREFECT_API_URL": f"{services.addresses[PREFECT].url}/api",
            "MLFLOW_TRACKING_URI": services.addresses[MLFLOW].url,
        }


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, servers: dict[str, str]) -> Lab:
    """The home of a small study that nothing has disturbed."""
    lab = Lab(tmp_path_factory.mktemp("undisturbed"), **servers)
    assert set(lab.study("project=undisturbed").values()) == {"computed"}
    assert lab.left_behind() == []
    return lab


@pytest.fixture(scope="session")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    """Small results for force analyses, made in this process."""
    return Analysed(tmp_path_factory.mktemp("analysed") / "home")


@pytest.fixture
def finished(tmp_path: Path, servers: dict[str, str], undisturbed: Lab) -> Lab:
    """A home that has all results."""
    return Lab(tmp_path, **servers).adopt(undisturbed)


@pytest.fixture
def lab(tmp_path: Path, servers: dict[str, str], undisturbed: Lab) -> Lab:
    """A home that has all results up to the finetuned model."""
    later = ("preference", "probe", "report")
    return Lab(tmp_path, **servers).adopt(undisturbed, without=later)
