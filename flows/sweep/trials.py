"""The trials of one sweep in Optuna's database, which outlives the sweep's processes.

The same parameters load the same study, and a sweep that died goes on where it stopped. Several
processes with the same parameters share the trials: each runs trials that no other has begun.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dynolab.results.sweep import Scalar, TrialRow, TrialState
from flows.sweep.parameters import Dimension, PruneConfig, SweepParameters
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings

if TYPE_CHECKING:
    import optuna

RUN_ID, MEASURED = "mlflow_run_id", "measured"
"""Attributes of a trial in Optuna: MLflow's id of its run, and what the page shows of it."""

ENOUGH_TRIALS = 8  # complete ones, before the importance of settings is shown


class SweepStudy:
    """The trials of one sweep in Optuna's database.

    It is the home's `sweeps.db`, or the address in DYNOLAB_SWEEPS.
    """

    def __init__(self, parameters: SweepParameters) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.parameters, self.name = parameters, study_name(parameters)
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
        # `constant_liar`: trials that other processes run now count as bad ones, so that this
        # process does not draw the same.
        self._study.sampler = (
            optuna.samplers.TPESampler(seed=seed, constant_liar=True)
            if parameters.sampler == "tpe"
            else _spread_sampler(parameters.seed, seed)
        )
        if parameters.sampler == "grid":
            for point in grid_points(parameters):
                self._study.enqueue_trial(point, skip_if_exists=True)

    def unfinished(self) -> list[optuna.Trial]:
        """Trials that were begun and not ended: they run now, or their process died."""
        import optuna

        # `get_trials` gives records; only a `Trial`, by its id, can be reported to and ended.
        running = self._study.get_trials(states=[optuna.trial.TrialState.RUNNING])
        return [optuna.Trial(self._study, trial._trial_id) for trial in running]

    def ask(self) -> optuna.Trial | None:
        """Begins the next trial; None if all are begun."""
        waiting = [trial for trial in self._study.trials if trial.state.name == "WAITING"]
        draws_more = self.parameters.sampler != "grid" and (
            len(self._study.trials) < self.parameters.total
        )
        if not (waiting or draws_more):  # a grid's trials are all queued from the start
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

        # Optuna's name of the state, and a value of each metric that decides.
        optuna_state = next(name for name, ours in _STATES.items() if ours == state)
        scores = [values[metric] for metric in self.parameters.objectives] if values else None
        self._study.tell(
            trial, scores, state=optuna.trial.TrialState[optuna_state], skip_if_finished=True
        )

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
        metric = self.parameters.metric
        checked = sorted(trial.intermediate_values.items())  # step and value, of the metric alone
        so_far = {"values": {metric: checked[-1][1]}, "paths": {metric: checked}} if checked else {}
        return trial.user_attrs.get(MEASURED) or so_far

    def best(self) -> list[TrialRow]:
        """The best complete trial; of several metrics, all on their Pareto front."""
        front = {trial.number for trial in self._study.best_trials}
        # Of one metric, several trials may share the best value: then the first counts.
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
            # `place` as a default: the function would else see the loop's next one.
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
    first_check = max(config.after_steps, config.every)  # in steps
    if config.rule == "asha":
        return pruners.SuccessiveHalvingPruner(first_check, config.factor)
    if config.rule == "hyperband":
        return pruners.HyperbandPruner(first_check, reduction_factor=config.factor)
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


def _spread_sampler(seed: int, first_seed: int) -> Any:
    """Draws that fill a range evenly (a scrambled Sobol sequence): a handful of independent ones
    may leave half of it empty.

    **Arguments:** `first_seed`: of trials that begin before any has ended, which are independent.
    """
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.QMCSampler(
            scramble=True,
            seed=seed,
            independent_sampler=optuna.samplers.RandomSampler(seed=first_seed),
            warn_asynchronous_seeding=False,
            warn_independent_sampling=False,
        )


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.values is not None:
        return CategoricalDistribution(dimension.values)
    low, high = dimension.ends
    if dimension.integer:
        return IntDistribution(int(low), int(high), log=dimension.log)
    return FloatDistribution(low, high, log=dimension.log)


_STATES: dict[str, TrialState] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
