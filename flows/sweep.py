"""The sweep: trials with settings of another flow, whose stages share results.

Optuna keeps the trials in a database that outlives the sweep's processes: the same parameters load
the same study, and a sweep that died goes on where it stopped. Several processes with the same
parameters share the trials: each runs trials that no other has begun.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import random
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from dynolab.data.rows import read_rows
from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError, DynolabError, Pruned, check_known
from dynolab.grouping import grouped
from dynolab.results.study import MetricsLine
from dynolab.results.sweep import Scalar, TrialRow, TrialState
from dynolab.store import Claim
from flows.flow import Flow, FlowParameters, Form, Name
from flows.parameters import as_change, load_parameters, study_file
from flows.registry import FLOWS, load_flow
from tasks.runtime.open_platform import open_platform, planning_platform
from tasks.runtime.stage import Platform
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.mlflow_pages import DESCRIPTION_TAG, PAGE_FOLDER, compare_page, run_page
from tasks.runtime.track.progress import inside_prefect_run, slug
from tasks.runtime.track.runs import shown_params
from tasks.runtime.training_monitor import watched_by
from tasks.runtime.work import StageConfig, StageResult

if TYPE_CHECKING:
    import optuna

log = logging.getLogger(__name__)

RUN_ID, MEASURED = "mlflow_run_id", "measured"
ENOUGH_TRIALS = 8  # complete ones, before the importance of settings is shown
PATH_POINTS = 100
LOGP = "probe/chosen/logp"
BESIDE = (LOGP, "probe/rejected/logp", "squeeze/gap", "train/margin")
"""Metrics that are shown beside those of the sweep."""

RUN_CREATION_SECONDS = 30.0
_METRIC = re.compile(
    r"(train|rollout|data)/.+|squeeze/(gap|rise)|probe/([^/]+/(logp(_per_token)?|outside_mass)|seconds)"
)  # of a training; only the training itself knows all that begin with train/
_EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


class Dimension(StageConfig):
    """The values of one setting: a choice of `values`, or numbers from `low` to `high`."""

    values: tuple[Scalar, ...] | None = Field(
        None, min_length=1, description="Values to choose from."
    )
    low: float | None = Field(None, description="Smallest number.")
    high: float | None = Field(None, description="Largest number.")
    log: bool = Field(False, description="Draw on a log scale.")
    integer: bool = Field(False, description="Whole numbers.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        return {"values": given} if isinstance(given, list) else given

    @field_validator("values")
    @classmethod
    def _numbers(cls, values: tuple[Scalar, ...] | None) -> tuple[Scalar, ...] | None:
        """YAML reads 1e-5, unlike 1.0e-5, as text."""
        return values and tuple(
            float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
            for value in values
        )

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


Direction = Literal["maximize", "minimize"]


class PruneConfig(StageConfig):
    """Pruning of trials whose metric is worse than that of others after as many steps.

    Successive halving: Li et al., arXiv 1810.05934; Hyperband: Li et al., arXiv 1603.06560.
    """

    rule: Literal["median", "asha", "hyperband"] = Field(
        "median",
        description="What a trial has to reach to go on: the median of the others; the best of "
        "`factor` trials, at every `factor` times as many steps (asynchronous successive halving); "
        "the same with different first checks (Hyperband).",
    )
    after_trials: int = Field(4, ge=1, description="median: complete trials before any is pruned.")
    after_steps: int = Field(0, ge=0, description="Steps of a trial before it can be pruned.")
    factor: int = Field(3, ge=2, description="asha, hyperband: of so many trials one goes on.")
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
    direction: Direction = Field(
        "maximize", description="Whether to maximise or minimise the metric."
    )
    also: dict[str, Direction] = Field(
        {},
        description="Further metrics → maximize or minimize. The best trials are then those that "
        "no other trial beats in all metrics: the Pareto front.",
    )
    prune: PruneConfig | None = Field(
        None, description="Ends unpromising trials early; null: none."
    )

    @model_validator(mode="after")
    def _can_be_sampled(self) -> SweepParameters:
        if self.also and self.prune is not None:
            raise ConfigError("prune", self.prune.rule, "needs a single metric; leave out `also`")
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
    def objectives(self) -> dict[str, Direction]:
        """The metrics that decide, the first one first, and their directions."""
        return {self.metric: self.direction, **self.also}

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
    """Raises `ConfigError`, before any trial, for an unknown flow, step, metric or setting.

    Checks each value of a setting together with the first values of the others.
    """
    check_known("flow", parameters.flow, [name for name in FLOWS if name != "sweep"])
    first = {
        name: dimension.low if dimension.values is None else dimension.values[0]
        for name, dimension in parameters.space.items()
    }
    for name, dimension in parameters.space.items():
        for value in dimension.values or (dimension.low, dimension.high):
            flow, settings = trial_of(parameters, first | {name: value})
    steps = [step.name for step in flow.plan(settings, planning_platform()).steps]
    check_known("stage", parameters.stage, steps)
    for metric in parameters.objectives:
        if parameters.stage in ("sft", "preference") and not _METRIC.fullmatch(metric):
            raise ConfigError(
                "metric",
                metric,
                "no training has it; choose train/margin, "
                "probe/chosen/logp, squeeze/gap or another that MLflow shows of a training",
            )


def trial_of(parameters: SweepParameters, point: Mapping[str, Any]) -> tuple[Any, Any]:
    """The flow of a trial, and its parameters with the values of a `point` of the space.

    **Raises** `ConfigError` for settings that cannot work.
    """
    changes = [as_change(setting, value) for setting, value in point.items()]
    flow = load_flow(parameters.flow)
    return flow, load_parameters(
        flow.parameters, parameters.study_path, [*parameters.settings, *changes]
    )


class SweepStudy:
    """The trials of one sweep in Optuna's database.

    It is the home's `sweeps.db`, or the address in DYNOLAB_SWEEPS.
    """

    def __init__(self, parameters: SweepParameters) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.parameters, self.name = parameters, study_name(parameters)
        self.artifact: Any = None
        """The table of the trials in Prefect."""

        home = own_folder(Settings.from_environment().home)
        address = os.environ.get("DYNOLAB_SWEEPS") or f"sqlite:///{home}/sweeps.db"
        # SQLite's default of five seconds is short for several writers.
        options = {"connect_args": {"timeout": 60}} if address.startswith("sqlite:") else {}
        self._study = optuna.create_study(
            storage=optuna.storages.RDBStorage(address, engine_kwargs=options),
            study_name=self.name,
            directions=list(parameters.objectives.values()),
            load_if_exists=True,
            pruner=_pruner(parameters.prune),
        )
        # The seed counts the begun trials, so that a resumed sweep draws new ones.
        seed = parameters.seed + len(self._study.trials)
        self._study.sampler = (
            optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            if parameters.sampler == "tpe"
            else optuna.samplers.RandomSampler(seed=seed)
        )
        if parameters.sampler == "grid":
            for point in grid_points(parameters):
                self._study.enqueue_trial(point, skip_if_exists=True)

    def unfinished(self) -> list[optuna.Trial]:
        """Trials that were begun and not ended: they run now, or their process died."""
        import optuna

        running = self._study.get_trials(states=[optuna.trial.TrialState.RUNNING])
        return [optuna.Trial(self._study, trial._trial_id) for trial in running]

    def ask(self) -> optuna.Trial | None:
        """Begins the next trial; None if all are begun."""
        waiting = [trial for trial in self._study.trials if trial.state.name == "WAITING"]
        drawn = self.parameters.sampler != "grid"
        if not waiting and not (drawn and len(self._study.trials) < self.parameters.total):
            return None
        space = self.parameters.space.items()
        return self._study.ask({name: _distribution(values) for name, values in space})

    def has_ended(self, trial: optuna.Trial) -> bool:
        """Whether a trial's end is recorded."""
        return self._study.trials[trial.number].state.is_finished()

    def end(
        self, trial: optuna.Trial, state: TrialState, values: Mapping[str, float] | None = None
    ) -> None:
        """Records how a trial ended, unless its end is recorded; `values` of a complete one."""
        import optuna

        ended = next(name for name, ours in _STATES.items() if ours == state)
        told = [values[metric] for metric in self.parameters.objectives] if values else None
        self._study.tell(trial, told, state=optuna.trial.TrialState[ended], skip_if_finished=True)

    def rows(self) -> list[TrialRow]:
        """Every trial that was begun."""
        return [
            TrialRow(
                number=trial.number,
                state=_STATES.get(trial.state.name, "running"),
                settings=trial.params,
                mlflow_run_id=trial.user_attrs.get(RUN_ID),
                **self._measured(trial),
            )
            for trial in self._study.trials
            if trial.state.name != "WAITING"
        ]

    def _measured(self, trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
        """Values and paths of a trial: at its end, else as far as they were checked for pruning."""
        metric, checked = self.parameters.metric, sorted(trial.intermediate_values.items())
        so_far = {"values": {metric: checked[-1][1]}, "paths": {metric: checked}} if checked else {}
        return trial.user_attrs.get(MEASURED) or so_far

    def best(self) -> list[TrialRow]:
        """The best complete trial; of several metrics, all on their Pareto front."""
        front = {trial.number for trial in self._study.best_trials}
        best = [row for row in self.rows() if row.number in front]
        return best if self.parameters.also else best[:1]

    def importances(self) -> dict[str, dict[str, float]]:
        """Metric → setting → share of the metric's variance over trials that the setting explains.

        By fANOVA (Hutter, Hoos and Leyton-Brown, ICML 2014). Empty for one setting, and for few
        trials; without a metric that all trials have the same value of.
        """
        from optuna.importance import FanovaImportanceEvaluator

        shares: dict[str, dict[str, float]] = {}
        complete = sum(row.state == "complete" for row in self.rows())
        if len(self.parameters.space) < 2 or complete < ENOUGH_TRIALS:
            return shares
        for place, metric in enumerate(self.parameters.objectives):

            def target(trial: optuna.trial.FrozenTrial, place: int = place) -> float:
                return float(trial.values[place])

            with suppress(RuntimeError):  # there is no variance
                shares[metric] = FanovaImportanceEvaluator(seed=0).evaluate(
                    self._study, target=target
                )
        return shares


def _pruner(config: PruneConfig | None) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if config is None:
        return pruners.NopPruner()
    first = max(config.after_steps, config.every)
    if config.rule == "asha":
        return pruners.SuccessiveHalvingPruner(first, config.factor)
    if config.rule == "hyperband":
        return pruners.HyperbandPruner(first, reduction_factor=config.factor)
    return pruners.MedianPruner(config.after_trials, config.after_steps)


def study_name(parameters: SweepParameters) -> str:
    """The sweep's name with a digest of all settings that decide its trials."""
    content = parameters.model_dump_json(exclude={"project"}).encode()
    if parameters.study_path is not None:
        content += parameters.study_path.read_bytes()
    return f"{parameters.name}-{hashlib.sha256(content).hexdigest()[:12]}"


def short(value: Scalar) -> str:
    """A setting's value or a metric for a table or a name."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def grid_points(parameters: SweepParameters) -> list[dict[str, Scalar]]:
    """The points of the grid that the sweep tries; drawn from all if it tries only some of them."""
    axes = {name: dimension.values or () for name, dimension in parameters.space.items()}
    grid = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    if parameters.total < len(grid):
        random.Random(parameters.seed).shuffle(grid)
    return grid[: parameters.total]


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.values is not None:
        return CategoricalDistribution(dimension.values)
    assert dimension.low is not None and dimension.high is not None
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


_STATES: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def sweep(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials of a sweep that no process has begun, or whose process died.

    Returns the trials as rows.
    """
    check_sweep(parameters)
    study = SweepStudy(parameters)
    with open_platform(
        study=parameters.name,
        project=parameters.project,
        tags={"kind": "sweep", "flow": "sweep", "sweep": parameters.name},
        params=shown_params(parameters),
        settings_yaml=parameters.as_yaml,
        charts=True,
    ) as platform:
        run_trials(study, platform)
        return report(study, platform)


def run_trials(study: SweepStudy, platform: Platform) -> None:
    """Runs trials one by one: those whose process died, then new ones.

    An error fails its trial alone. An interruption ends the sweep; its next process takes the trial
    up again.

    **Raises** `ConfigError` if the study file changed after the sweep began.
    """
    abandoned = study.unfinished()
    while (trial := abandoned.pop(0) if abandoned else study.ask()) is not None:
        with Claim(platform.store.files, f"sweeps/{study.name}/{trial.number}") as claim:
            if (holder := claim.acquire_or_holder()) or study.has_ended(trial):
                log.info("trial %d: left to %s", trial.number, holder or "its process")
                continue
            if study_name(study.parameters) != study.name:
                raise ConfigError(
                    "study",
                    study.parameters.study,
                    "changed after the sweep began; start the sweep again",
                )
            show_trials(study, platform)
            _run_trial(study, trial, platform)


def _run_trial(study: SweepStudy, trial: optuna.Trial, platform: Platform) -> None:
    """Runs a trial's stages under an MLflow run of its own, and records its end."""
    sweep, point = study.parameters, trial.params
    try:
        flow, settings = trial_of(sweep, point)
    except ConfigError as error:
        log.warning("trial %d failed: %s", trial.number, error)
        study.end(trial, "failed")
        return
    pairs = ", ".join(
        f"{name.rpartition('.')[2]} = {short(value)}" for name, value in point.items()
    )
    own = replace(platform, open_tracking=lambda: platform.tracking, open_parent_run=lambda _: run)
    # Opened here, so that its run gets metrics also if every stage is cached.
    run = own.tracking.start_run(
        f"{pairs} ({sweep.name} {trial.number})"[:120],
        parent=platform.parent_run,
        params=shown_params(settings) | point,
        settings_yaml=settings.as_yaml,
        tags={"kind": "trial", "flow": "trial", "sweep": sweep.name, "trial": str(trial.number)},
    )

    def watch(stage: str, line: MetricsLine) -> None:
        value = line.metrics.get(sweep.metric)
        if sweep.prune is None or stage != sweep.stage or line.step % sweep.prune.every:
            return
        if value is None or not math.isfinite(value):
            return
        trial.report(value, line.step)
        if trial.should_prune():
            raise Pruned(stage, line.step, sweep.metric, value)

    state: TrialState = "failed"
    values: dict[str, float] | None = None
    try:
        from flows.run import run_on

        with watched_by(watch):
            planned = replace(flow.plan(settings, planning_platform()), trained=sweep.stage)
            results = run_on(own, planned, fresh=False)
        paths = metric_paths(sweep, results, platform)
        values = {name: path[-1][1] for name, path in paths.items()}
        of_stage = results[sweep.stage].metrics  # the others are logged at every step
        run.log_metrics({name: values[name] for name in sweep.objectives if name in of_stage}, 0)
        trial.set_user_attr(MEASURED, _kept(sweep, paths))
        run.wait_created(RUN_CREATION_SECONDS)
        state = "complete"
    except UnknownMetric:  # no trial has it
        run.finish("FAILED")
        study.end(trial, state)
        raise
    except Pruned as pruned:
        log.info("trial %d: %s", trial.number, pruned)
        state = "pruned"
    except Exception as error:
        expected = isinstance(error, DynolabError)
        log.warning("trial %d failed: %s", trial.number, error, exc_info=not expected)
    except BaseException:
        run.finish("KILLED")
        raise
    trial.set_user_attr(RUN_ID, run.run_id)
    study.end(trial, state, values)
    run.set_tags({"trial.state": state})
    run.finish("FAILED" if state == "failed" else "FINISHED")


class UnknownMetric(ConfigError):
    """The sweep's step has no metric of this name."""


def metric_paths(
    sweep: SweepParameters, results: Mapping[str, StageResult], platform: Platform
) -> dict[str, list[tuple[int, float]]]:
    """Metrics of the sweep's step → steps and values; one that is no training's has one, at 0.

    **Raises** `UnknownMetric` without a metric of the sweep, and `ConfigError` unless their last
    values are finite numbers.
    """
    result = results[sweep.stage]
    paths = {name: [(0, value)] for name, value in result.metrics.items()}
    if "metrics.jsonl" in platform.store.manifest(result.address, result.digest).files:
        folder = platform.store.folder(result.address, result.digest)
        paths |= grouped(
            (name, (line.step, value))
            for line in read_rows(folder / "metrics.jsonl", MetricsLine)
            for name, value in line.metrics.items()
        )
    for metric in sweep.objectives:
        if metric not in paths:
            known = ", ".join(sorted(paths)) or "none"
            raise UnknownMetric("metric", metric, f"choose a metric of {sweep.stage}: {known}")
        if not math.isfinite(paths[metric][-1][1]):
            raise ConfigError("metric", metric, "is not finite at the end; lower the learning rate")
    return paths


def _kept(
    sweep: SweepParameters, paths: Mapping[str, list[tuple[int, float]]]
) -> dict[str, dict[str, Any]]:
    """What the sweep's page shows of a trial: last values of some metrics, and two paths."""
    shown = [name for name in dict.fromkeys((*sweep.objectives, *BESIDE)) if name in paths]
    kept = {}
    per_token = any(name.startswith(LOGP) for name in sweep.objectives)
    for name in (*sweep.objectives, *([] if per_token else [LOGP])):
        finite = [point for point in paths.get(name, ()) if math.isfinite(point[1])]
        if len(finite) > 1:
            kept[name] = finite[:: -math.ceil(len(finite) / PATH_POINTS)][::-1]
    last = {name: paths[name][-1][1] for name in shown}
    return {
        "values": {name: last[name] for name in last if math.isfinite(last[name])},
        "paths": kept,
    }


def report(study: SweepStudy, platform: Platform) -> dict[str, Any]:
    """Returns the trials as rows; logs the best trial to MLflow."""
    compare = show_trials(study, platform)
    rows, best, run = study.rows(), study.best(), platform.parent_run
    assert run is not None
    states = [row.state for row in rows]
    run.log_metrics(
        {f"sweep/{name}": float(states.count(name)) for name in ("complete", "pruned", "failed")}, 0
    )
    if not best:
        raise DynolabError(
            f"sweep {study.parameters.name}: none of {len(rows)} trials was completed; see their "
            "runs"
        )
    run.log_metrics({name: best[0].values[name] for name in study.parameters.objectives}, 0)
    run.set_tags(
        {"best.trial": ", ".join(str(row.number) for row in best)}
        | {f"best.{name}": str(value) for name, value in best[0].settings.items() if len(best) == 1}
    )
    return {
        "trials": [row.model_dump(mode="json", exclude={"paths"}) for row in rows],
        "best": [row.number for row in best],
        "compare": compare,
    }


def show_trials(study: SweepStudy, platform: Platform) -> str:
    """Writes the page of the trials so far; MLflow's run and Prefect's lead to it.

    They also say which trials are best; Prefect's run has a table of all. **Returns** the address
    of MLflow's comparison of the trials; empty for fewer than two.
    """
    from dynolab.report.comparison.sweep import write_sweep_page

    parameters, rows, best = study.parameters, study.rows(), study.best()
    run = platform.parent_run
    ids = [row.mlflow_run_id for row in rows if row.mlflow_run_id]
    compare = compare_page(run.run, ids) if run and run.run and len(ids) > 1 else ""
    page = platform.settings.reports / f"{parameters.name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_sweep_page(
        page,
        name=parameters.name,
        objectives=parameters.objectives,
        rows=rows,
        best=[row.number for row in best],
        importances=study.importances(),
        compare=f"{run.server}/{compare}" if run and compare else "",
    )
    text = f"{sum(row.state != 'running' for row in rows)} of {parameters.total} trials have ended."
    for row in best:
        point = ", ".join(f"{name} = {short(value)}" for name, value in row.settings.items())
        reached = ", ".join(f"{name} {short(row.values[name])}" for name in parameters.objectives)
        text = f"Best: {reached}, with {point}. {text}"
    log.info(text)
    if run:
        run.log_artifact(page, PAGE_FOLDER)
        if run.run:
            links = {"Report": run_page(run.run, f"{PAGE_FOLDER}/{page.name}"), "Compare": compare}
            own, full = (
                " · ".join(f"[{name}]({start}{end})" for name, end in links.items() if end)
                for start in ("", f"{run.server}/")
            )
            run.set_tags({DESCRIPTION_TAG: f"{text} {own}"})
            text += f" {full}"
    if inside_prefect_run():
        _show_in_prefect(study, rows, best, text)
    return f"{run.server}/{compare}" if run and compare else ""


def _show_in_prefect(
    study: SweepStudy, rows: Sequence[TrialRow], best: Sequence[TrialRow], text: str
) -> None:
    """Makes or updates the run's table of trials in Prefect."""
    from prefect.artifacts import create_table_artifact
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactUpdate

    table = [
        {
            "trial": f"{row.number}{' (best)' if row in best else ''}",
            "ended": row.state,
            **row.settings,
            **{name: float(f"{value:.5g}") for name, value in row.values.items()},
        }
        for row in rows
    ]
    try:
        if study.artifact is None:
            key = f"trials-{slug(study.parameters.name)}"
            study.artifact = create_table_artifact(table, key, text)
        else:
            update = ArtifactUpdate(data=json.dumps(table), description=text)
            get_client(sync_client=True).update_artifact(study.artifact, update)
    except Exception as error:  # Prefect's outage must not end the sweep
        log.warning("the table of trials could not be published in Prefect: %s", error)


FLOW = Flow(
    "sweep",
    SweepParameters,
    body=sweep,
    forms={
        "sweep": Form(
            "Many trainings that differ in a few settings, and which of them is best.",
            {
                "sampler": "sampler",
                "trials": "trials",
                "metric": "metric",
                "direction": "direction",
                "stage": "stage",
                "flow": "flow",
                "study": "study",
            },
            tried={
                "beta": "preference.objective.beta",
                "learning_rate": "preference.optimizer.learning_rate",
                "steps": "preference.steps",
            },
            file="sweep_beta.yaml",
        )
    },
)
