"""What the platform costs and saves, against real servers started for it.

    python -m tests.benchmarks.platform [--keep FOLDER]

Prints one JSON object on its last line:

- `stage_overhead_s`: a flow of one stage that does nothing, in a process that has run one before:
  platform opened, key looked up, claimed, committed, run made in MLflow, everything sent, closed
  (median of 7; `stage_overhead_range_s`: smallest and largest). `cached_stage_s`: the same flow
  again, its stage cached.
- `sweep_saved_fraction`: of the seconds that eight trials over β would work if each computed all
  its stages, the share that the sweep did not, because trials share what comes before DPO.
  `sweep_work_s` and `sweep_naive_s` are the two; `sweep_wall_s` is the whole flow.
- `metrics_per_s`: values from a rank's file until MLflow's server has them; `metrics_lost`: of
  them, those that its history lacks; `metrics_doubled`: those that it has more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.benchmarks.figures import report, seconds, timed

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "deploy" / "studies" / "sweep_beta.yaml"
REPEATS = 7
STEPS, NAMES = 4000, 10
SENDING_SECONDS = 120.0
AT_LEAST = {"sweep_saved_fraction": 0.4}
AT_MOST = {"stage_overhead_s": 1.5, "metrics_lost": 0, "metrics_doubled": 0}


class Nothing(BaseModel):
    """Settings of a stage that does nothing."""

    number: int = 0


def no_op() -> dict[str, Any]:
    """A flow of one stage that does nothing, timed."""
    import prefect

    from flows.flow import FlowParameters, Plan
    from flows.run import run_plan
    from tasks.runtime.pipeline import Step
    from tasks.runtime.stage import Stage
    from tasks.runtime.work import Work

    def nothing(work: Work[Nothing]) -> dict[str, float]:
        (work.output / "nothing.txt").write_text("nothing")
        return {}

    stage = Stage("nothing", 1, nothing)

    @prefect.flow(name="overhead")
    def overhead(number: int) -> None:
        steps = [Step("nothing", stage, Nothing(number=number))]
        parameters = FlowParameters(name="overhead", project="overhead")
        run_plan("overhead", Plan(parameters, steps), fresh=False)

    overhead(-1)
    cold, cached = (
        [seconds(partial(overhead, number)) for number in range(REPEATS)] for _ in range(2)
    )
    return {
        "stage_overhead_s": statistics.median(cold),
        "stage_overhead_range_s": [min(cold), max(cold)],
        "cached_stage_s": statistics.median(cached),
    }


def shared_prefixes() -> dict[str, Any]:
    """The sweep over eight β from an empty store, and what it would have cost without sharing."""
    from flows.flow import StagedFlow
    from flows.parameters import load_parameters
    from flows.registry import load_flow
    from flows.run import as_prefect_flow
    from flows.sweep import FLOW
    from tasks.runtime.open_platform import planning_platform
    from tasks.runtime.pipeline import finished

    parameters = load_parameters(FLOW.parameters, SWEEP)
    platform = planning_platform()
    wall, ended = timed(lambda: as_prefect_flow(FLOW)(parameters))
    trials = ended["trials"]
    assert [trial["state"] for trial in trials] == ["complete"] * 8, trials
    work: dict[str, float] = {}
    naive = 0.0
    flow = load_flow(parameters.flow)
    assert isinstance(flow, StagedFlow)
    for trial in trials:
        changes = [f"{name}={json.dumps(value)}" for name, value in trial["settings"].items()]
        known = load_parameters(
            flow.parameters, parameters.study_path, [*parameters.settings, *changes]
        )
        for result in finished(flow.plan(known, platform).steps, platform).values():
            work[result.key] = result.metrics.get("seconds", 0.0)
            naive += work[result.key]
    done = sum(work.values())
    return {
        "sweep_saved_fraction": 1 - done / naive,
        "sweep_work_s": done,
        "sweep_naive_s": naive,
        "sweep_wall_s": wall,
    }


def metrics(folder: Path, uri: str) -> dict[str, Any]:
    """Writes a rank's file line by line while it is followed, until the server has all of it."""
    from mlflow.tracking import MlflowClient

    from tasks.runtime.track.tail import MetricsTail
    from tasks.runtime.track.tracking import Tracking

    file, expected = folder / "metrics.jsonl", STEPS * NAMES
    tracking = Tracking(uri, folder / "outbox", "metrics")
    run = tracking.start_run("metrics", tags={}, params={})
    tail = MetricsTail(file, run)
    began = time.monotonic()
    with file.open("w") as lines:
        for step in range(STEPS):
            values = {f"train/metric_{name}": step + name / NAMES for name in range(NAMES)}
            line = {"step": step, "examples": step, "time": time.time(), "metrics": values}
            lines.write(json.dumps(line) + "\n")
            if step % 100 == 99:
                lines.flush()
                tail.poll()
    tail.poll()
    left = tracking.send_pending(SENDING_SECONDS)
    took = time.monotonic() - began
    run.finish("FINISHED")
    run_id = run.run_id
    tracking.close(SENDING_SECONDS)
    assert run_id is not None and not left, f"{left} operations were not sent"
    client = MlflowClient(uri)
    points = [
        (name, point.step, point.value)
        for name in (f"train/metric_{number}" for number in range(NAMES))
        for point in client.get_metric_history(run_id, name)
    ]
    return {
        "metrics_per_s": expected / took,
        "metrics_lost": expected - len(set(points)),
        "metrics_doubled": len(points) - len(set(points)),
    }


@contextmanager
def platform(home: Path) -> Iterator[str]:
    """Servers of an empty home, and this process turned towards them; yields MLflow's address."""
    from tasks.runtime.servers.server_processes import MLFLOW, start_services

    with start_services(home) as services:
        services.wait_ready()
        os.environ |= services.environment() | {"DYNOLAB_HOME": str(home)}
        os.environ |= {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
        yield services.addresses[MLFLOW].url


def measure(folder: Path) -> dict[str, Any]:
    """All figures."""
    for name in [name for name in os.environ if name.startswith(("PREFECT_", "MLFLOW_"))]:
        del os.environ[name]
    os.environ.pop("DYNOLAB_STORE", None)
    with platform(folder / "home") as uri:
        return no_op() | metrics(folder, uri) | shared_prefixes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--keep", type=Path, help="Folder for what is made; default: none is kept.")
    kept = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as temporary:
        figures = measure(kept or Path(temporary))
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)
