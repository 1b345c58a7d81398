"""Sweeps: what is tried, shared and pruned, how one goes on, and how processes share one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import optuna
import pytest
import requests
import yaml

from dynolab.errors import ConfigError
from dynolab.report.comparison.sweep import write_sweep_page
from dynolab.results.study import MetricsLine
from dynolab.results.sweep import TrialRow
from dynolab.store import Claim, Store
from flows import commands, run
from flows.parameters.validation import validated
from flows.sweep.parameters import SweepParameters
from flows.sweep.run import check_sweep, run_trials
from flows.sweep.trials import SweepStudy, study_name
from tasks.runtime.stage import Platform
from tasks.runtime.training_monitor import Watched
from tasks.runtime.work import StageResult
from tests.flows.lab import SMALL, Lab, ended_well
from tests.runtime.doubles import memory_platform

BETA = "preference.objective.beta"
PLAIN = ("preference.engine={kind: plain, ranks: 1}",)


def a_sweep(**changes: Any) -> SweepParameters:
    given = {
        "name": "tried",
        "study": str(SMALL),
        "space": {BETA: {"values": [0.1, 1.0]}},
        "metric": "loss",
        "direction": "minimize",
    }
    return validated(SweepParameters, given | changes)


def begun(study: SweepStudy) -> optuna.Trial:
    trial = study.ask()
    assert trial is not None
    return trial


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path))
    monkeypatch.delenv("DYNOLAB_SWEEPS", raising=False)
    return tmp_path


def test_processes_that_share_a_sweep_try_every_point_of_the_grid_once() -> None:
    grid = a_sweep(space={"a": {"values": [1, 2]}, "b": {"values": ["x", "y", "z"]}})
    studies = [SweepStudy(grid), SweepStudy(grid)]
    tried = [tuple(begun(studies[n % 2]).params.values()) for n in range(6)]
    assert [study.ask() for study in studies] == [None, None]
    assert sorted(tried) == [(a, b) for a in (1, 2) for b in "xyz"]
    some = SweepStudy(a_sweep(space={"a": [1, 2, 3]}, trials=2))
    assert len({begun(some).params["a"] for _ in range(2)}) == 2 and some.ask() is None


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
            trial = begun(study)
            study.end(trial, "complete", {"loss": float(trial.params["a"])})
    rows = SweepStudy(parameters).rows()
    assert SweepStudy(parameters).ask() is None and len(rows) == 12
    assert len({row.settings["a"] for row in rows}) == 12, "no draw is made twice"
    assert all(1e-4 <= float(row.settings["a"]) <= 1 for row in rows)
    assert all(row.settings["n"] in range(1, 10) for row in rows)


def test_another_sweep_has_another_memory() -> None:
    assert study_name(a_sweep()) == study_name(a_sweep(project="other"))
    assert study_name(a_sweep()) != study_name(a_sweep(seed=1))
    assert study_name(a_sweep()) != study_name(a_sweep(settings=["seed=1"]))


class Trainings:
    """In place of a flow's stages: a training that logs its metric, or fails in its turn."""

    def __init__(self, *ends: float | BaseException) -> None:
        self.ends, self.begun = list(ends), 0

    def __call__(self, platform: Platform, plan: Any, *, fresh: bool) -> dict[str, StageResult]:
        self.begun += 1
        end = self.ends.pop(0)
        if isinstance(end, BaseException):
            raise end
        watched = Watched("preference", platform.settings.home / "stop")
        watched(MetricsLine(step=10, examples=40, time=1.0, metrics={"loss": end}))
        watched.check()
        place = platform.store.place("preference", "a" * 64)
        return {
            "preference": StageResult(
                stage="preference",
                key=place.key,
                address=place.path,
                digest="",
                metrics={"loss": end},
                mlflow_run_id=None,
                cached=True,
            )
        }


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    platform = memory_platform(tmp_path)
    no_files = type("NoFiles", (), {"files": ()})
    monkeypatch.setattr(Store, "manifest", lambda *_: no_files)
    return platform


def statuses(platform: Platform) -> list[str | None]:
    tracking: Any = platform.tracking
    return [run.status for run in tracking.runs]


def test_an_error_ends_its_trial_and_an_interruption_the_sweep_which_goes_on_there(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        run, "run_on", Trainings(RuntimeError("out of memory"), KeyboardInterrupt())
    )
    with pytest.raises(KeyboardInterrupt):
        run_trials(SweepStudy(a_sweep()), platform)
    assert statuses(platform) == ["FAILED", "KILLED"]
    page = platform.settings.reports / "tried.html"
    assert "1 failed, 1 running" in page.read_text(), "the page grows with the sweep"
    study = SweepStudy(a_sweep())
    assert [row.state for row in study.rows()] == ["failed", "running"]
    monkeypatch.setattr(run, "run_on", Trainings(0.5))
    run_trials(study, platform)
    assert [row.state for row in study.rows()] == ["failed", "complete"]
    assert study.best() == [study.rows()[1]]


def test_a_trial_that_another_process_runs_is_left_to_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dynolab.store.claim.RENEW_SECONDS", 0.1)
    here, study = Trainings(0.5), SweepStudy(a_sweep())
    monkeypatch.setattr(run, "run_on", here)
    name = f"sweeps/{study.name}/{begun(study).number}"
    with Claim(platform.store.files, name) as claim:
        assert claim.try_acquire()
        run_trials(study, platform)
    assert here.begun == 1 and [row.state for row in study.rows()] == ["running", "complete"]


def test_a_trial_worse_than_the_median_is_pruned(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_on", Trainings(1.0, 2.0, 3.0))
    study = SweepStudy(
        a_sweep(prune={"after_trials": 2}, space={BETA: {"values": [0.1, 0.2, 0.3]}})
    )
    run_trials(study, platform)
    assert [row.state for row in study.rows()] == ["complete", "complete", "pruned"]
    assert study.rows()[2].values == {"loss": 3.0} and statuses(platform) == ["FINISHED"] * 3
    assert study.rows()[2].paths == {"loss": [(10, 3.0)]}


@pytest.mark.parametrize("rule", ["asha", "hyperband"])
def test_of_three_trials_the_best_goes_on(
    rule: str, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "run_on", Trainings(*(float(n) for n in range(12))))
    betas = [0.1 + n for n in range(12)]
    prune = {"rule": rule, "every": 10, "factor": 3}
    study = SweepStudy(a_sweep(prune=prune, space={BETA: {"values": betas}}))
    run_trials(study, platform)
    states = [row.state for row in study.rows()]
    assert states[0] == "complete" and states.count("pruned") > 3


def test_of_two_metrics_the_trials_that_no_other_beats_in_both_are_best() -> None:
    study = SweepStudy(
        a_sweep(
            also={"margin": "maximize"},
            space={"a": {"values": [0, 1, 2]}, "b": {"values": [0, 1, 2]}},
        )
    )
    ends = {}
    while (trial := study.ask()) is not None:
        a, b = trial.params["a"], trial.params["b"]
        ends[trial.number] = (a, b)
        study.end(trial, "complete", {"loss": float(a), "margin": 2.0 * a - b})
    assert {ends[row.number] for row in study.best()} == {(0, 0), (1, 0), (2, 0)}
    shares = study.importances()
    assert shares["loss"]["a"] > 0.9 and 0 < shares["margin"]["b"] < shares["margin"]["a"]


def test_a_metric_that_no_training_has_ends_the_sweep(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = Trainings(1.0, 2.0)
    monkeypatch.setattr(run, "run_on", trainings)
    with pytest.raises(ConfigError, match="metric = 'los': choose a metric of preference: loss"):
        run_trials(SweepStudy(a_sweep(metric="los")), platform)
    assert trainings.begun == 1 and statuses(platform) == ["FAILED"]


def test_a_combination_that_cannot_work_is_that_trials_failure(platform: Platform) -> None:
    space = {
        "preference.engine.ranks": {"values": [3]},
        "preference.batch_size": {"values": [8]},
    }
    study = SweepStudy(a_sweep(space=space, settings=["preference.engine.zero_stage=3"]))
    run_trials(study, platform)
    assert [row.state for row in study.rows()] == ["failed"]


def test_a_trial_of_a_study_file_that_has_changed_is_refused(
    platform: Platform, tmp_path: Path
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(SMALL.read_text())
    study = SweepStudy(a_sweep(study=str(file)))
    file.write_text(SMALL.read_text() + "seed: 5\n")
    with pytest.raises(ConfigError, match=r"study = .*study.yaml.: changed after"):
        run_trials(study, platform)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {}}, "space = "),
        (
            {"sampler": "grid", "space": {BETA: {"low": 0.1, "high": 1}}},
            rf"space.{BETA} = .*a grid needs values",
        ),
        ({"space": {BETA: {}}}, "give either values, or low and high"),
        ({"space": {BETA: {"values": [1], "low": 0}}}, "give either values, or low and high"),
        ({"space": {BETA: {"low": 0, "high": 1, "log": True}}}, "above 0"),
        ({"space": {BETA: {"low": 2, "high": 1}}}, "low must be below high"),
        ({"space": {"a": {"low": 0.5, "high": 2, "integer": True}}}, "whole numbers"),
        ({"trials": 0}, "trials = 0"),
        ({"also": {"margin": "maximize"}, "prune": {}}, "prune = .*single metric"),
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
        ({"study": "none.yaml"}, "cannot be read"),
        ({"also": {"margin": "maximize"}, "metric": "train/loss"}, "metric = 'margin'"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_any_trial(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sweep(a_sweep(**changes))


def test_a_range_is_drawn_from_ten_times_unless_it_is_said_otherwise() -> None:
    drawn = a_sweep(space={BETA: {"low": 0.1, "high": 1}, "a": [1, 2]})
    assert (drawn.sampler, drawn.total) == ("random", 10)
    assert a_sweep(space={BETA: {"low": 0.1, "high": 1}}, trials=3).total == 3
    assert a_sweep(sampler="tpe", space={"a": [1, 2]}).total == 10
    listed = a_sweep(space={"a": [1, 2]})
    assert (listed.sampler, listed.trials, listed.total) == ("grid", None, 2)
    assert SweepParameters.model_validate(drawn.model_dump()) == drawn


def test_trials_are_named_by_what_differs_in_as_few_words_as_tell_it_apart() -> None:
    space = {"sft.steps": [1, 2], "base.training.steps": [3, 4], BETA: [0.1, 1], "seed": [0]}
    assert a_sweep(space=space).tried == {
        "sft.steps": "sft.steps",
        "base.training.steps": "training.steps",
        BETA: "beta",
    }
    assert a_sweep(space={"seed": [0]}).tried == {"seed": "seed"}


def test_the_page_tells_the_best_trials_and_escapes_names(tmp_path: Path) -> None:
    rows = [
        TrialRow(
            number=n,
            state="pruned" if n == 2 else "complete",
            values={"m": -n / 2.0, "n": n - 1.0},
            settings={BETA: 10.0**-n, "name": "<b>x</b>"},
            paths={"m": [(1, 0.0), (2, -n / 2.0)]},
        )
        for n in range(3)
    ]
    file = tmp_path / "s.html"
    one = {"m": "minimize"}
    shown = {BETA: "beta", "name": "name"}
    write_sweep_page(
        file,
        name="<i>s</i>",
        objectives=one,
        settings=shown,
        rows=rows,
        best=[1],
        compare="http://x/#/compare-runs",
    )
    page = file.read_text()
    assert "Trial 1 is best" in page and "2 complete, 1 pruned" in page
    assert '<a href="http://x/#/compare-runs"' in page
    assert "<i>s</i>" not in page and "<b>x</b>" not in page
    shares = {"m": {BETA: 0.75, "name": 0.0}, "n": {BETA: 1.0, "name": 0.0}}
    two = one | {"n": "minimize"}
    write_sweep_page(
        file,
        name="two",
        objectives=two,
        settings=shown,
        rows=rows,
        best=[0, 1],
        importances=shares,
    )
    page = file.read_text()
    assert "Trial 0 has the best n" in page and "beta explains 75% of the variance of m" in page
    drawn = ("values", "front", "parallel", "importance", "paths")
    assert all(f'id="plot-{name}"' in page for name in drawn)
    write_sweep_page(file, name="none", objectives=one, settings=shown, rows=[])
    assert "0 trials" in file.read_text()


@pytest.mark.parametrize("servers_stay", [True, False])
def test_links_to_servers_that_end_with_the_command_are_not_printed(
    servers_stay: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "http://127.0.0.1:1/#/compare-runs"
    ended = {"table": [["trial"]], "compare": address}
    commands._show_trials(ended, Path("beta.html"), servers_stay=servers_stay)
    printed = capsys.readouterr().out
    assert (address in printed) is servers_stay
    assert (" up " in printed) is not servers_stay


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
    assert begun(died).number == 0
    printed = run_sweep(lab, tmp_path / "tried.yaml", parameters)
    assert printed.count(" complete ") == 2
    assert died.ask() is None
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
    assert "[Report](" in parents[parent].data.tags["mlflow.note.content"]
    artifacts = requests.post(
        f"{lab.environment['PREFECT_API_URL']}/artifacts/filter",
        headers=json.loads(lab.environment["PREFECT_CLIENT_CUSTOM_HEADERS"]),
        json={"artifacts": {"key": {"like_": "summary-tried-"}}},
        timeout=30,
    ).json()
    assert all(trial.info.run_id in printed for trial in trials), "the comparison's address"
    (summary,) = artifacts
    assert "[Report](http" in summary["description"] and "[Compare](http" in summary["description"]
    table = [line.split(" | ") for line in summary["data"].splitlines() if line.startswith("| ")]
    (best,) = (cells for cells in table if "best" in cells[0])
    assert table[0][2] == "train/loss" and float(best[2]) == pytest.approx(min(values), rel=1e-4)
    assert len(table) == 4
    assert parents[parent].data.metrics["train/loss"] == min(values)
    assert {run.info.status for run in runs} == {"FINISHED"}

    run_sweep(lab, tmp_path / "again.yaml", parameters.model_copy(update={"name": "again"}))
    again = [run for run in runs_of(lab.mlflow, "swept") if run.data.tags.get("sweep") == "again"]
    cached = [run.data.metrics["train/loss"] for run in again if run.data.tags["flow"] == "trial"]
    assert sorted(cached) == sorted(values)
