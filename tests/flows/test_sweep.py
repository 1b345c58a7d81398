"""Sweeps: what is tried, shared and pruned, how one goes on, and that two are not one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.errors import ConfigError
from dynolab.report.comparison.sweep import write_sweep_page
from dynolab.results.sweep import TrialRow
from dynolab.store import Store
from flows.parameters import validated
from flows.sweep import (
    Started,
    SweepParameters,
    SweepStudy,
    alone,
    check_sweep,
    run_trials,
    study_name,
)
from flows.trial import _in_process as run_here, _settings as trial_settings, run_trial
from tests.flows.lab import ROOT, SMALL, Lab, ended_well
from tests.runtime.doubles import memory_platform

BETA = "preference.objective.beta"
PLAIN = ("preference.engine={kind: plain, ranks: 1}",)
HOLDER = """
import sys, time
from dynolab.store import Claim, Store
from dynolab.store import claim as module
module.RENEW_SECONDS = 0.1
url, cache, name = sys.argv[1:]
claim = Claim(Store(url, cache=cache).files, f"sweeps/{name}/CLAIM")
assert claim.try_acquire()
print("held", flush=True)
time.sleep(120)
"""


def a_sweep(**changes: Any) -> SweepParameters:
    space = {BETA: {"values": [0.1, 1.0]}}
    return validated(
        SweepParameters, {"name": "tried", "study": str(SMALL), "space": space} | changes
    )


def next_trial(study: SweepStudy) -> int:
    number = study.ask()
    assert number is not None
    return number


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path))
    monkeypatch.delenv("DYNOLAB_SWEEPS", raising=False)
    return tmp_path


def test_a_grid_is_tried_whole_and_once() -> None:
    study = SweepStudy(a_sweep(space={"a": {"values": [1, 2]}, "b": {"values": ["x", "y", "z"]}}))
    tried = {tuple(study.settings(next_trial(study)).values()) for _ in range(6)}
    assert study.ask() is None
    assert tried == {(a, b) for a in (1, 2) for b in "xyz"}


def test_a_sweep_that_died_between_queueing_and_asking_leaves_no_point_out() -> None:
    study = SweepStudy(a_sweep(space={"a": {"values": [1, 2, 3]}}))
    study._study.enqueue_trial({"a": 1})
    assert [study.settings(next_trial(study))["a"] for _ in range(3)] == [1, 2, 3]
    assert study.ask() is None


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_draws_stay_in_their_ranges_and_go_on_after_a_crash(sampler: str) -> None:
    parameters = a_sweep(
        sampler=sampler,
        trials=12,
        space={
            "a": {"low": 1e-4, "high": 1.0, "log": True},
            "n": {"low": 1, "high": 9, "integer": True},
        },
    )
    for _ in range(6):
        study = SweepStudy(parameters)  # each time as after a crash
        for _ in range(2):
            number = next_trial(study)
            study.end(number, "complete", float(study.settings(number)["a"]))
    rows = SweepStudy(parameters).rows()
    assert SweepStudy(parameters).ask() is None and len(rows) == 12
    assert len({row.settings["a"] for row in rows}) == 12, "no draw is made twice"
    assert all(1e-4 <= float(row.settings["a"]) <= 1 for row in rows)
    assert all(row.settings["n"] in range(1, 10) for row in rows)


def test_a_trial_that_died_is_found_again_and_an_ended_one_keeps_its_end() -> None:
    study = SweepStudy(a_sweep())
    first, second = next_trial(study), next_trial(study)
    assert study.started(first) == 1
    study.end(first, "complete", 0.5)
    again = SweepStudy(a_sweep())
    assert (again.unfinished(), again.attempts(first)) == ([second], 1)
    again.end(first, "failed")
    assert again.rows()[first].state == "complete"
    again.end(second, "pruned")
    assert [row.state for row in again.rows()] == ["complete", "pruned"]
    assert again.best() == again.rows()[first]


def test_another_sweep_has_another_memory() -> None:
    assert study_name(a_sweep()) == study_name(a_sweep(concurrency=7))
    assert study_name(a_sweep()) != study_name(a_sweep(seed=1))
    assert study_name(a_sweep()) != study_name(a_sweep(settings=["seed=1"]))


def test_a_trial_below_the_median_is_hopeless() -> None:
    study = SweepStudy(a_sweep(prune={"after_trials": 2}, space={"a": {"values": [1, 2, 3]}}))
    for value in (1.0, 2.0):
        number = next_trial(study)
        assert not study.is_hopeless(number, 10, value)
        study.end(number, "complete", value)
    number = next_trial(study)
    assert study.is_hopeless(number, 10, 0.5)
    assert study.rows()[number].value == 0.5


class Workers:
    """Stand-ins for processes: a trial ends at the second look, as `ends` says it does."""

    def __init__(self, *ends: str) -> None:
        self.ends, self.started, self.cancelled = list(ends), list[int](), list[int]()
        self.most = 0
        self.at_work: set[int] = set()

    def __call__(self, study: SweepStudy, number: int) -> Started:
        study.started(number)
        self.started.append(number)
        self.at_work.add(number)
        self.most = max(self.most, len(self.at_work))
        looks = iter([False, True])

        def ended() -> bool:
            if not next(looks):
                return False
            self.at_work.discard(number)
            end = self.ends.pop(0)
            if end == "complete":
                study.end(number, "complete", float(number))
            elif end == "interrupted":
                raise KeyboardInterrupt
            return True

        return Started(ended, lambda: self.cancelled.append(number))


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.sweep.POLL_SECONDS", 0.0)


def test_a_trial_whose_process_died_runs_again_and_then_counts_as_failed(no_pause: None) -> None:
    study = SweepStudy(a_sweep(retries=1, concurrency=1))
    workers = Workers("died", "died", "complete")
    run_trials(study, workers)
    assert workers.started == [0, 0, 1]
    assert [row.state for row in study.rows()] == ["failed", "complete"]


def test_an_interrupted_sweep_ends_its_trials_and_takes_them_up_later(no_pause: None) -> None:
    workers = Workers("interrupted")
    with pytest.raises(KeyboardInterrupt):
        run_trials(SweepStudy(a_sweep(concurrency=2)), workers)
    assert len(workers.cancelled) == 2
    later = Workers("complete", "complete")
    run_trials(SweepStudy(a_sweep(concurrency=2)), later)
    assert sorted(later.started) == sorted(workers.started) == [0, 1]


def test_a_combination_that_cannot_work_is_that_trials_failure(tmp_path: Path) -> None:
    parameters = a_sweep(
        space={
            "preference.engine.ranks": {"values": [2, 3]},
            "preference.batch_size": {"values": [6, 8]},
        },
        settings=["preference.engine.zero_stage=3"],
    )
    check_sweep(parameters)
    study = SweepStudy(parameters)
    assert [study.ask() for _ in range(4)] == [0, 1, 2, 3]
    assert run_here(memory_platform(tmp_path))(study, 3).ended()
    assert study.unfinished() == [0, 1, 2] and study.rows()[3].state == "failed"


@pytest.mark.parametrize(
    ("error", "status", "state"),
    [(RuntimeError("out of memory"), "FAILED", "failed"), (KeyboardInterrupt, "KILLED", "running")],
)
def test_what_breaks_a_trial_ends_it_alone_and_an_interruption_ends_the_sweep(
    error: Exception, status: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("flows.trial.run_trial", broken)
    platform, study = memory_platform(tmp_path), SweepStudy(a_sweep())
    number = next_trial(study)
    with suppress(KeyboardInterrupt):
        run_here(platform)(study, number)
    tracking: Any = platform.tracking
    assert [run.status for run in tracking.runs] == [status]
    assert study.rows()[number].state == state


def test_a_trial_of_a_study_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(SMALL.read_text())
    study = SweepStudy(a_sweep(study=str(file)))
    settings = trial_settings(study, next_trial(study))
    file.write_text(SMALL.read_text() + "seed: 5\n")
    with pytest.raises(ConfigError, match=r"study = .*study.yaml.: changed after"):
        run_trial(settings, memory_platform(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, "space = "),
        ({"space": {BETA: {"low": 0.1, "high": 1}}}, rf"space.{BETA} = .*a grid needs values"),
        ({"space": {BETA: {}}}, "give either values, or low and high"),
        ({"space": {BETA: {"values": [1], "low": 0}}}, "give either values, or low and high"),
        ({"space": {BETA: {"low": 0, "high": 1, "log": True}}}, "above 0"),
        ({"space": {BETA: {"low": 2, "high": 1}}}, "low must be below high"),
        ({"space": {"a": {"low": 0.5, "high": 2, "integer": True}}}, "whole numbers"),
        ({"sampler": "tpe"}, "trials = None: set the number of trials that tpe draws"),
        ({"trials": 0}, "trials = 0"),
    ],
)
def test_a_sweep_that_cannot_be_drawn_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        a_sweep(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flow": "sweep"}, "flow = 'sweep': choose one of .*study"),
        ({"flow": "none"}, "flow = 'none': choose one of"),
        ({"space": {BETA: {"values": [0.1, -1.0]}}}, rf"{BETA} = -1.0"),
        ({"space": {"preference.objective.gamma": {"values": [1]}}}, "there is no such setting"),
        ({"settings": ["nothing"]}, "write it as key=value"),
        ({"study": "none.yaml"}, "cannot be read"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_trial(
    changes: dict[str, Any], message: str
) -> None:
    parameters = a_sweep(**changes)
    with pytest.raises(ConfigError, match=message):
        check_sweep(parameters)


def test_the_page_tells_the_best_trial_and_escapes_names(tmp_path: Path) -> None:
    rows = [
        TrialRow(
            number=n,
            state="pruned" if n == 2 else "complete",
            value=-n / 2.0,
            settings={BETA: 10.0**-n, "name": "<b>x</b>"},
        )
        for n in range(3)
    ]
    file = tmp_path / "s.html"
    write_sweep_page(file, name="<i>s</i>", metric="m", direction="minimize", rows=rows)
    page = file.read_text()
    assert "Trial 1 is best" in page and "2 complete, 1 pruned" in page
    assert "<i>s</i>" not in page and "<b>x</b>" not in page
    write_sweep_page(file, name="none", metric="m", direction="minimize", rows=[])
    assert "0 trials" in file.read_text()


def run_sweep(lab: Lab, file: Path, parameters: SweepParameters) -> str:
    """The command on a file with these parameters, to its good end: what it printed."""
    file.write_text(yaml.safe_dump(parameters.model_dump(mode="json", exclude_none=True)))
    return ended_well(lab.start(config=file, flow="sweep"))


def runs_of(uri: str, project: str) -> list[Any]:
    """What MLflow has of a project."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(project)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], max_results=100))


@pytest.mark.services
def test_trials_share_what_comes_before_and_a_sweep_goes_on_where_it_died(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = a_sweep(settings=PLAIN, project="swept", metric="train/loss", direction="minimize")
    monkeypatch.setenv("DYNOLAB_HOME", str(lab.home))
    died = SweepStudy(parameters)
    assert died.ask() == 0
    assert run_sweep(lab, tmp_path / "tried.yaml", parameters).count(" complete ") == 2
    assert died.attempts(0) == 1 and died.ask() is None
    stages = lab.home / "store" / "stages"
    computed = {path.name: len(list(path.glob("*/COMMITTED"))) for path in stages.iterdir()}
    assert computed["preference"] == 2
    assert computed["data"] == computed["base"] == computed["sft"] == 1
    assert "Trial " in (lab.home / "reports" / "tried.html").read_text()
    runs = runs_of(lab.mlflow, "swept")
    parents = {run.info.run_id: run for run in runs if run.data.tags.get("flow") == "sweep"}
    trials = [run for run in runs if run.data.tags.get("flow") == "trial"]
    assert {run.data.params[BETA] for run in trials} == {"0.1", "1.0"}
    (parent,) = {run.data.tags["mlflow.parentRunId"] for run in trials}
    values = [run.data.metrics["train/loss"] for run in trials]
    assert parents[parent].data.metrics["train/loss"] == min(values)
    assert {run.info.status for run in runs} == {"FINISHED"}


@pytest.fixture
def study() -> SweepStudy:
    return SweepStudy(a_sweep())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store", cache=tmp_path / "cache")


@pytest.fixture
def holder(study: SweepStudy, store: Store, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, store.files.url, str(tmp_path / "cache"), study.name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_of_two_sweeps_is_told_who_the_first_is(
    study: SweepStudy, store: Store, holder: subprocess.Popen[str]
) -> None:
    with (
        pytest.raises(ConfigError, match=rf"name = 'tried': process {holder.pid} on .* runs this"),
        alone(study, store),
    ):
        pass
