"""The sweep: trials with settings of another flow, whose stages share results.

Optuna keeps the trials in a database that outlives the sweep's processes: the same parameters load
the same study, and a sweep that died goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError, DynolabError
from dynolab.results.sweep import Scalar, TrialRow, TrialState
from dynolab.store import Claim, Store
from flows.flow import Flow, FlowParameters, Form, Name
from flows.parameters import as_change, load_parameters, study_file
from flows.registry import FLOWS, load_flow
from tasks.runtime.open_platform import open_platform
from tasks.runtime.stage import Platform
from tasks.runtime.system.settings import Settings

if TYPE_CHECKING:
    import optuna

ATTEMPTS, RUN_ID = "attempts", "mlflow_run_id"
POLL_SECONDS = 2.0


class Dimension(BaseModel):
    """The values of one setting: a choice of `values`, or numbers from `low` to `high`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    values: tuple[Scalar, ...] | None = Field(
        None, min_length=1, description="Values to choose from."
    )
    low: float | None = Field(None, description="Smallest number.")
    high: float | None = Field(None, description="Largest number.")
    log: bool = Field(False, description="Draw on a log scale.")
    integer: bool = Field(False, description="Whole numbers.")

    @model_validator(mode="after")
    def _is_one_kind(self) -> Dimension:
        ends = (self.low, self.high)
        if (self.values is None) == (ends == (None, None)):
            raise ConfigError("space", self.values, "give either values, or low and high")
        if self.values is not None:
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ConfigError("space", ends, "low must be below high; give both")
        if self.log and self.low <= 0:
            raise ConfigError("space.low", self.low, "must be above 0 on a log scale")
        if self.integer and not (self.low.is_integer() and self.high.is_integer()):
            raise ConfigError(
                "space", ends, "with integer: true, low and high must be whole numbers"
            )
        return self


class PruneConfig(BaseModel):
    """Pruning of trials whose metric is worse than the median of the others so far."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    after_trials: int = Field(4, ge=1, description="Complete trials before any is pruned.")
    after_steps: int = Field(0, ge=0, description="Steps of a trial before it can be pruned.")
    every: int = Field(10, ge=1, description="Steps between two checks of the metric.")


class SweepParameters(FlowParameters):
    """Parameters of a sweep."""

    name: Name = Field("sweep", description="Name of the sweep: its run, and its page's file.")
    flow: str = Field("train", description="Flow that every trial runs.")
    study: FilePath | None = Field(None, description="Study file with the settings of all trials.")
    settings: tuple[str, ...] = Field(
        (), description="Changes to that file for all trials, as key=value."
    )
    space: dict[str, Dimension] = Field(
        ..., min_length=1, description="Dotted name of a setting → its values."
    )
    sampler: Literal["grid", "random", "tpe"] = Field(
        "grid",
        description="Every combination, draws, or Optuna's tree-structured Parzen estimator.",
    )
    trials: int | None = Field(None, ge=1, description="Number of trials; default: the whole grid.")
    seed: int = Field(0, ge=0, description="Seed of the sampler.")
    stage: str = Field("preference", description="Step of the flow that has the metric.")
    metric: str = Field(
        "probe/chosen/logp_per_token",
        description="Name of the metric in MLflow; its last value counts.",
    )
    direction: Literal["maximize", "minimize"] = Field(
        "maximize", description="Whether to maximise or minimise the metric."
    )
    prune: PruneConfig | None = Field(
        None, description="Ends unpromising trials early; null: none."
    )
    concurrency: int = Field(
        2, ge=1, description="Trials submitted at once; the workers' pool may run fewer."
    )
    retries: int = Field(1, ge=0, description="How often a trial whose process died runs again.")

    @model_validator(mode="after")
    def _can_be_sampled(self) -> SweepParameters:
        if self.sampler != "grid" and self.trials is None:
            raise ConfigError("trials", None, f"set the number of trials that {self.sampler} draws")
        if self.sampler == "grid":
            for setting, dimension in self.space.items():
                if dimension.values is None:
                    raise ConfigError(
                        f"space.{setting}",
                        [dimension.low, dimension.high],
                        "a grid needs values; list them, or choose random or tpe",
                    )
        return self

    @property
    def total(self) -> int:
        """Number of trials."""
        if self.sampler != "grid":
            assert self.trials is not None
            return self.trials
        size = math.prod(len(dimension.values or ()) for dimension in self.space.values())
        return min(size, self.trials or size)

    @property
    def study_path(self) -> Path | None:
        """The study file of a trial."""
        return None if self.study is None else study_file(Path(self.study))


def check_sweep(parameters: SweepParameters) -> None:
    """Raises `ConfigError`, before any trial, for an unknown flow and for invalid settings.

    Checks each value of a setting together with the first values of the others.
    """
    flows = [name for name in FLOWS if name != "sweep"]
    if parameters.flow not in flows:
        raise ConfigError("flow", parameters.flow, f"choose one of {', '.join(flows)}")
    first = {
        name: dimension.low if dimension.values is None else dimension.values[0]
        for name, dimension in parameters.space.items()
    }
    for name, dimension in parameters.space.items():
        for value in dimension.values or (dimension.low, dimension.high):
            trial_of(parameters, first | {name: value})


def trial_of(parameters: SweepParameters, point: Mapping[str, Any]) -> tuple[Any, Any]:
    """The flow of a trial, and its parameters with the values of a `point` of the space.

    **Raises** `ConfigError` for settings that cannot work.
    """
    changes = [as_change(setting, value) for setting, value in point.items()]
    flow = load_flow(parameters.flow)
    settings = load_parameters(
        flow.parameters, parameters.study_path, [*parameters.settings, *changes]
    )
    return flow, settings


class SweepStudy:
    """The trials of one sweep in Optuna's database.

    It is the home's `sweeps.db`, or the address in DYNOLAB_SWEEPS. Several processes may use it:
    the sweep begins trials, each trial reports its values and its end.
    """

    def __init__(self, parameters: SweepParameters) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.parameters, self.name = parameters, study_name(parameters)
        home = Settings.from_environment().home
        home.mkdir(parents=True, exist_ok=True)
        address = os.environ.get("DYNOLAB_SWEEPS") or f"sqlite:///{home}/sweeps.db"
        # SQLite's default of five seconds is short for several writers.
        options = {"connect_args": {"timeout": 60}} if address.startswith("sqlite:") else {}
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if (rule := parameters.prune) is not None:
            pruner = optuna.pruners.MedianPruner(rule.after_trials, rule.after_steps)
        self._study = optuna.create_study(
            storage=optuna.storages.RDBStorage(address, engine_kwargs=options),
            study_name=self.name,
            direction=parameters.direction,
            load_if_exists=True,
            pruner=pruner,
        )
        # The seed counts the begun trials, so that a resumed sweep draws new ones.
        seed = parameters.seed + len(self._study.trials)
        self._study.sampler = (
            optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            if parameters.sampler == "tpe"
            else optuna.samplers.RandomSampler(seed=seed)
        )

    def unfinished(self) -> list[int]:
        """Trials that were begun but not ended, because the sweep or the trial died."""
        return [trial.number for trial in self._study.trials if trial.state.name == "RUNNING"]

    def ask(self) -> int | None:
        """Begins the next trial; None if all are begun."""
        trials = self._study.trials
        begun = [trial for trial in trials if trial.state.name != "WAITING"]
        if len(begun) >= self.parameters.total:
            return None
        # A trial that a dead sweep queued but did not begin is already waiting.
        if self.parameters.sampler == "grid" and len(trials) == len(begun):
            self._study.enqueue_trial(grid_points(self.parameters)[len(begun)])
        return self._study.ask(dict(_distributions(self.parameters))).number

    def settings(self, number: int) -> dict[str, Scalar]:
        """The settings of a trial."""
        return dict(self._study.trials[number].params)

    def attempts(self, number: int) -> int:
        """How often a trial was started."""
        return int(self._study.trials[number].user_attrs.get(ATTEMPTS, 0))

    def started(self, number: int) -> int:
        """Records that a trial is about to start; returns the number of the attempt, from 1."""
        attempt = self.attempts(number) + 1
        self._trial(number).set_user_attr(ATTEMPTS, attempt)
        return attempt

    def has_ended(self, number: int) -> bool:
        """Whether a trial's end is recorded."""
        return self._study.trials[number].state.is_finished()

    def end(
        self, number: int, state: TrialState, value: float | None = None, run: str | None = None
    ) -> None:
        """Records how a trial ended, unless its end is recorded.

        **Arguments:** `value`: of its metric, if it is complete; `run`: its run in MLflow.
        """
        import optuna

        if run is not None:
            self._trial(number).set_user_attr(RUN_ID, run)
        known = {ours: name for name, ours in _STATES.items()}
        ended = optuna.trial.TrialState[known[state]]
        self._study.tell(number, value, state=ended, skip_if_finished=True)

    def is_hopeless(self, number: int, step: int, value: float) -> bool:
        """Reports the metric at a step; True if the trial should be pruned."""
        trial = self._trial(number)
        trial.report(value, step)
        return bool(trial.should_prune())

    def rows(self) -> list[TrialRow]:
        """Every trial that was begun."""
        return [_row(trial) for trial in self._study.trials if trial.state.name != "WAITING"]

    def best(self) -> TrialRow | None:
        """The best complete trial, or None."""
        complete = [row for row in self.rows() if row.state == "complete" and row.value is not None]
        sign = 1 if self.parameters.direction == "maximize" else -1
        return max(complete, key=lambda row: sign * (row.value or 0.0), default=None)

    def _trial(self, number: int) -> optuna.trial.Trial:
        import optuna

        return optuna.trial.Trial(self._study, self._study.trials[number]._trial_id)


def study_name(parameters: SweepParameters) -> str:
    """The sweep's name with a digest of all settings that decide its trials."""
    ignored = {"concurrency", "retries", "project"}
    content = parameters.model_dump_json(exclude=ignored).encode()
    if parameters.study_path is not None:
        content += parameters.study_path.read_bytes()
    return f"{parameters.name}-{hashlib.sha256(content).hexdigest()[:12]}"


def grid_points(parameters: SweepParameters) -> list[dict[str, Scalar]]:
    """All points of the grid; shuffled if the sweep tries only some of them."""
    axes = {name: dimension.values or () for name, dimension in parameters.space.items()}
    grid = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    if parameters.total < len(grid):
        random.Random(parameters.seed).shuffle(grid)
    return grid


def _distributions(
    parameters: SweepParameters,
) -> Mapping[str, optuna.distributions.BaseDistribution]:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    for name, dimension in parameters.space.items():
        if dimension.values is not None:
            distributions[name] = CategoricalDistribution(dimension.values)
            continue
        assert dimension.low is not None and dimension.high is not None
        if dimension.integer:
            distributions[name] = IntDistribution(
                int(dimension.low), int(dimension.high), log=dimension.log
            )
        else:
            distributions[name] = FloatDistribution(
                dimension.low, dimension.high, log=dimension.log
            )
    return distributions


_STATES: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def _row(trial: optuna.trial.FrozenTrial) -> TrialRow:
    last = trial.intermediate_values.get(trial.last_step) if trial.last_step is not None else None
    return TrialRow(
        number=trial.number,
        state=_STATES.get(trial.state.name, "running"),
        settings=trial.params,
        value=trial.value if trial.value is not None else last,
        mlflow_run_id=trial.user_attrs.get(RUN_ID),
    )


@dataclass(frozen=True)
class Started:
    """A started trial: whether its process has ended, and how to cancel it."""

    ended: Callable[[], bool]
    cancel: Callable[[], None]


Launch = Callable[[SweepStudy, int], Started]
"""Starts a trial."""


def sweep(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials of a sweep, or the remaining ones of an interrupted sweep.

    Returns the trials as rows.
    """
    from flows.trial import choose_launch

    check_sweep(parameters)
    study = SweepStudy(parameters)
    params = parameters.model_dump(mode="json", exclude={"space"}) | {
        "space": {
            name: dimension.model_dump(mode="json", exclude_none=True)
            for name, dimension in parameters.space.items()
        },
    }
    with (
        open_platform(
            study=parameters.name,
            project=parameters.project,
            tags={"flow": "sweep", "sweep": parameters.name},
            params=params,
        ) as platform,
        alone(study, platform.store),
    ):
        run_trials(study, choose_launch(platform))
        return report(study, platform)


@contextmanager
def alone(study: SweepStudy, store: Store) -> Iterator[None]:
    """Claims the sweep for this process; takes over the claim of a dead one.

    **Raises** `ConfigError` if another process runs the sweep.
    """
    with Claim(store.files, f"sweeps/{study.name}/CLAIM") as claim:
        if holder := claim.acquire_or_holder():
            raise ConfigError(
                "name",
                study.parameters.name,
                f"{holder} runs this sweep; wait for it to end, or end it and start again",
            )
        yield


def run_trials(study: SweepStudy, launch: Launch) -> None:
    """Runs every trial, at most `concurrency` at once; unfinished ones of an earlier run first.

    A trial whose process died before it recorded its end runs again, at most `retries` times.
    Cancels running trials when the sweep ends; the next run of the sweep resumes them.
    """
    parameters, waiting, running = study.parameters, study.unfinished(), dict[int, Started]()
    try:
        while True:
            while len(running) < parameters.concurrency:
                number = waiting.pop(0) if waiting else study.ask()
                if number is None:
                    break
                running[number] = launch(study, number)
            if not running:
                return
            for number, started in list(running.items()):
                if not started.ended():
                    continue
                del running[number]
                if study.has_ended(number):
                    continue
                if study.attempts(number) <= parameters.retries:
                    waiting.append(number)
                else:
                    study.end(number, "failed")
            if running:
                time.sleep(POLL_SECONDS)
    finally:
        with ExitStack() as ending:  # cancels all, even if one cannot be cancelled
            for started in running.values():
                ending.callback(started.cancel)


def report(study: SweepStudy, platform: Platform) -> dict[str, Any]:
    """Returns the trials as rows; logs the best trial and the page to MLflow."""
    from dynolab.report.comparison.sweep import write_sweep_page

    rows, best, run = study.rows(), study.best(), platform.study
    assert run is not None
    folder = platform.settings.reports
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{study.parameters.name}.html"
    write_sweep_page(
        page,
        name=study.parameters.name,
        metric=study.parameters.metric,
        direction=study.parameters.direction,
        rows=rows,
    )
    run.log_artifact(page, "report")
    states = [row.state for row in rows]
    run.log_metrics(
        {f"sweep/{name}": float(states.count(name)) for name in ("complete", "pruned", "failed")}, 0
    )
    if best is None:
        raise SweepFailed(study.parameters.name, len(rows))
    run.log_metrics({study.parameters.metric: best.value or 0.0}, 0)
    run.set_tags(
        {"best.trial": str(best.number)}
        | {f"best.{name}": str(value) for name, value in best.settings.items()}
    )
    return {"trials": [row.model_dump(mode="json") for row in rows], "best": best.number}


class SweepFailed(DynolabError):
    """No trial of a sweep was completed."""

    def __init__(self, name: str, trials: int) -> None:
        super().__init__(f"sweep {name}: none of {trials} trials was completed; see their runs")


FLOW = Flow(
    "sweep",
    SweepParameters,
    body=sweep,
    pool="cpu",  # it only waits for its trials, which run in the other pool
    forms={
        "sweep": Form(
            "Many trials of another flow, with the settings listed under `space` in the file.",
            {
                "flow": "flow",
                "study": "study",
                "sampler": "sampler",
                "trials": "trials",
                "stage": "stage",
                "metric": "metric",
                "direction": "direction",
                "concurrency": "concurrency",
            },
            file="sweep_beta.yaml",
        )
    },
)
