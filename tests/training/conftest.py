"""What the room's tests share: small inputs, and rewards of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dynolab.functions import ALLOWED
from dynolab.training.job import TrainJob
from tests.training.small import make_job, settings


@pytest.fixture(scope="module", autouse=True)
def allowed() -> Iterator[None]:
    """Rewards of `tests/training/rewards.py` may be named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards,tests.objectives.losses")
        yield


@pytest.fixture
def started(inputs: Path, tmp_path: Path) -> TrainJob:
    """A job with results so far."""
    job = make_job(inputs, tmp_path / "started", settings())
    contents = {
        "forces/step-00000001/step.json": "record",
        "metrics.jsonl": "metrics\n",
        "probes.jsonl": "probes\n",
        "summary.json": "not carried",
    }
    for name, content in contents.items():
        file = job.output / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return job


@pytest.fixture
def later(inputs: Path, tmp_path: Path) -> TrainJob:
    """The same training, from anew."""
    return make_job(inputs, tmp_path / "some" / "later", settings())
