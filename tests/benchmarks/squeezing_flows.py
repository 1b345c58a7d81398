"""The comparisons of remedies and of the papers' findings, run as commands in an empty home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import seconds

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "deploy" / "studies"


def comparisons() -> dict[str, float]:
    """Both flows on the built-in world; the second takes the trainings that they share."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        taken, remedies = _run(home, "mitigation", "mitigation_builtin.yaml")
        return {
            "mitigation_arms": float(len(remedies["arms"])),
            "mitigation_seeds": float(len(remedies["seeds"])),
            "mitigation_diverged": _total(remedies, "/diverged"),
            "mitigation_wall_s": taken,
            **_findings(home, "reproduce_builtin.yaml", ""),
        }


def real_findings() -> dict[str, float]:
    """The papers' findings on the tinystories model and the paper's own pairs."""
    with tempfile.TemporaryDirectory() as folder:
        return _findings(Path(folder), "reproduce_tinystories.yaml", "_tinystories")


def _findings(home: Path, file: str, suffix: str) -> dict[str, float]:
    taken, summary = _run(home, "reproduce", file)
    outcomes = [verdict["outcome"] for verdict in summary["verdicts"]]
    counts = {
        "checked": sum(outcome != "not measured" for outcome in outcomes),
        "appear": outcomes.count("appears"),
        "absent": outcomes.count("does not"),
        "unclear": outcomes.count("unclear"),
    }
    claims = {f"claims_{name}{suffix}": float(count) for name, count in counts.items()}
    return claims | {f"reproduce_wall_s{suffix}": taken}


def _run(home: Path, flow: str, file: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a command, and the summary of its page."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    environment |= {"DYNOLAB_HOME": str(home), "DYNOLAB_STORE": f"file://{home}/store"}
    command = [sys.executable, "-m", "flows.cli", flow, "--config", str(STUDIES / file)]
    taken = seconds(
        partial(subprocess.run, command, env=environment, cwd=ROOT, check=True, stdout=sys.stderr)
    )
    page = "reproduction-page" if flow == "reproduce" else f"{flow}-page"
    (summary,) = home.glob(f"store/stages/{page}/*/*/summary.json")
    return taken, json.loads(summary.read_text())


def _total(summary: dict[str, Any], ending: str) -> float:
    return sum(value for name, value in summary["metrics"].items() if name.endswith(ending))
