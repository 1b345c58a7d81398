"""A sweep's Optuna study, in a database that outlives the sweep's processes."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dynolab.results.sweep import Scalar, TrialRow, TrialState
from flows.sweep.parameters import SweepParameters
from tasks.runtime.system.settings import Settings

if TYPE_CHECKING:
    import optuna

ATTEMPTS, RUN_ID = "attempts", "mlflow_run_id"


class SweepStudy:
    """The trials of one sweep; the same parameters load the same study.

    Its database is the home's `sweeps.db`, or the address in DYNOLAB_SWEEPS. Several processes may
    use it: the sweep begins trials, each trial reports its values and its end.
    """

    def __init__(self, parameters: SweepParameters) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.parameters, self.name = parameters, study_name(parameters)
        self._study = optuna.create_study(
            storage=_storage(database()),
            study_name=self.name,
            direction=parameters.direction,
            load_if_exists=True,
            pruner=_pruner(parameters),
        )
        self._study.sampler = _sampler(parameters, len(self._study.trials))

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
        self._record(number, ATTEMPTS, attempt)
        return attempt

    def note_run(self, number: int, run_id: str | None) -> None:
        """Records the trial's run in MLflow."""
        self._record(number, RUN_ID, run_id)

    def has_ended(self, number: int) -> bool:
        """Whether a trial's end is recorded."""
        return self._study.trials[number].state.is_finished()

    def complete(self, number: int, value: float) -> None:
        """Records that a trial ended with this value of its metric."""
        self._end(number, "COMPLETE", value)

    def prune(self, number: int) -> None:
        """Records that a trial was pruned."""
        self._end(number, "PRUNED", None)

    def fail(self, number: int) -> None:
        """Records that a trial failed."""
        self._end(number, "FAIL", None)

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

    def _end(self, number: int, state: str, value: float | None) -> None:
        import optuna

        self._study.tell(number, value, state=optuna.trial.TrialState[state], skip_if_finished=True)

    def _trial(self, number: int) -> optuna.trial.Trial:
        import optuna

        frozen = self._study.trials[number]
        return optuna.trial.Trial(self._study, frozen._trial_id)

    def _record(self, number: int, name: str, value: Any) -> None:
        self._trial(number).set_user_attr(name, value)


def database() -> str:
    """Address of the sweeps' database."""
    home = Settings.from_environment().home
    home.mkdir(parents=True, exist_ok=True)
    return os.environ.get("DYNOLAB_SWEEPS") or f"sqlite:///{home}/sweeps.db"


def _storage(address: str) -> optuna.storages.RDBStorage:
    """The database, with a lock timeout for several writers: SQLite's default is five seconds."""
    import optuna

    options = {"connect_args": {"timeout": 60}} if address.startswith("sqlite:") else {}
    return optuna.storages.RDBStorage(address, engine_kwargs=options)


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


def _sampler(parameters: SweepParameters, begun: int) -> optuna.samplers.BaseSampler:
    """The sampler; its seed counts the begun trials, so that a resumed sweep draws new ones."""
    from optuna.samplers import RandomSampler, TPESampler

    seed = parameters.seed + begun
    if parameters.sampler == "tpe":
        return TPESampler(seed=seed, constant_liar=True)
    return RandomSampler(seed=seed)


def _pruner(parameters: SweepParameters) -> optuna.pruners.BasePruner:
    from optuna.pruners import MedianPruner, NopPruner

    rule = parameters.prune
    if rule is None:
        return NopPruner()
    return MedianPruner(n_startup_trials=rule.after_trials, n_warmup_steps=rule.after_steps)


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
