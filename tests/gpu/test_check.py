"""`make check-gpu` where there is no GPU: the programs run, and what they cannot tell is listed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.check import CHECKS, judged


def test_verdicts_with_a_gpu_and_without() -> None:
    values = {"float64_error": 0.0, "float32_error": 0.5, "more": 1.0}

    def verdicts(gpus: int) -> dict[str, str]:
        return {row["figure"]: row["verdict"] for row in judged("forces", values, gpus)}

    assert verdicts(1) == {
        "float64_error": "met",
        "float32_error": "missed",
        "memory_over_given": "missed: not measured",
        "more": "no bound",
    }
    assert verdicts(0)["memory_over_given"] == "not judged: no GPU"
    assert judged("products", {"float32_error": float("nan")}, 1)[0]["verdict"] == "missed"


@pytest.mark.services
@pytest.mark.parametrize(
    "names",
    [("products",), pytest.param(tuple(CHECKS), marks=pytest.mark.study)],
)
def test_without_a_gpu_every_program_runs(names: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.check", *names],
        env=os.environ
        | {"DYNOLAB_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    rows = json.loads((tmp_path / "reports" / "gpu.json").read_text())["figures"]
    assert {row["check"] for row in rows} == set(names)
    assert {row["verdict"] for row in rows} <= {"met", "no bound", "not judged: no GPU"}
