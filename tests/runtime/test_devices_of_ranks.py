"""Which devices the ranks of a job are given."""

from __future__ import annotations

import importlib.metadata
import json
import tempfile
from pathlib import Path

import pytest
from test_devices import FOUR, free_devices

from tasks.runtime.launch.devices import hold_devices
from tasks.runtime.launch.launcher import launch_ranks


@pytest.mark.ranks
def test_ranks_see_the_devices_that_their_job_holds_and_stay_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DYNOLAB_DEVICES", ",".join(FOUR))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    (tmp_path / "job.json").write_text(
        json.dumps({"folder": str(tmp_path), "ranks": {"0": [], "1": []}})
    )
    free_meanwhile: list[list[str]] = []
    with hold_devices(1, FOUR) as others:
        launch_ranks(
            "fake_rank",
            tmp_path / "job.json",
            ranks=2,
            logs=tmp_path / "logs",
            environment={"PYTHONPATH": str(Path(__file__).parent)},
            while_running=lambda: free_meanwhile.append(free_devices()),
            poll_seconds=0.05,
        )
    seen = [json.loads((tmp_path / f"rank-{n}.json").read_text())["environment"] for n in (0, 1)]
    given = {(rank["CUDA_VISIBLE_DEVICES"], rank["DS_ACCELERATOR"]) for rank in seen}
    assert given == {("1,2", "cpu")} and list(others) == ["0"]
    assert all(free == ["3"] for free in free_meanwhile) and free_meanwhile
    assert free_devices() == list(FOUR)
