"""Forecasts of training without some pairs, beside trainings without them.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.removal_forecasts
        [--data builtin hh stories] [--seeds 0 1 2] [--home FOLDER]

The DPO of `builtin.yaml`, `hh_tinystories.yaml` or `mitigation_removals_stories.yaml`, whose pairs
are to be written first, in one process, and its ledger; then the same DPO on files without the rows
of sets of 1, 5 and 20 pairs: of each size those that pulled each of the `SETS` answers that fell
most down hardest, and as many drawn sets as `DRAWN` says. Answers are the ledger's single ones,
which fell. Prints one JSON object a study with means over seeds and their 95 % intervals; those of
each seed go to stderr. `--home` keeps the trainings. N is the size of the sets; without N: of all.

- `removal_forecasts_told_N`: share of blamed sets with a forecast: `LedgerReader.without` has one
  of answers whose steps did not undo each other. Of these `removal_forecast_over_trained_N`: Σ of
  what it says that the answer whose fall they are blamed for ends higher, over Σ of what it did;
  `removal_signs_right_N`: share of these answers that moved as forecast. `…_plain_N`: of all sets,
  by sums of lines alone; `…_drawn_N`: where what drawn sets of the size changed in the same answer,
  on average, is the forecast.
- `removal_error_N`, `removal_error_plain_N`: root mean square of forecast less trained over that of
  trained, of all answers and blamed sets; `removal_correlation_N`; of drawn sets:
  `drawn_removal_…_N`.
- `order_nats`: root mean square of what the training in another order of its rows changes, of which
  no forecast knows anything; `blamed_nats_N`: what the removals changed in the answers that they
  are blamed for. `beyond_first_order`: forecasts above 0, of which the sign alone counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Bool, Float

from dynolab.report.ledger.fallen import fallen_accounts
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.study import ProbeScore
from dynolab.statistics import mean_interval
from dynolab.training.config import EngineConfig, TrainConfig
from flows.mitigation import MitigationParameters
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.audit import FilterConfig
from tasks.ledger import LedgerConfig
from tasks.runtime.work import StageResult
from tests.benchmarks.figures import STUDIES
from tests.flows.in_process import InProcess

FILES = {
    "builtin": "builtin.yaml",
    "hh": "hh_tinystories.yaml",
    "stories": "mitigation_removals_stories.yaml",
}
SIZES = (1, 5, 20)
SETS, DRAWN, ORDERS = {"builtin": 5, "hh": 3, "stories": 3}, 1, (101, 102)
Changes = Float[np.ndarray, " answers"]


def study_of(data: str, seed: int) -> StudyParameters:
    """A study in one process, probed at its ends alone, which changes none of its steps."""
    file = STUDIES / FILES[data]
    if data == "stories":
        compared = load_parameters(MitigationParameters, file)
        (baseline,) = (arm for name, arm in compared.arms.items() if name == compared.baseline)
        study = StudyParameters(
            data=compared.data,
            base=compared.base,
            sft=None,
            preference=baseline.training(compared.training, compared.on_policy, 0),
            ledger=LedgerConfig(pairs=2),
        )
    else:
        study = load_parameters(StudyParameters, file)
    trainings = {"preference": study.preference} | ({"sft": study.sft} if study.sft else {})
    changes: dict[str, object] = {name: in_one(config) for name, config in trainings.items()}
    return resolved(study.model_copy(update=changes | {"seed": seed}))


def in_one(training: TrainConfig) -> TrainConfig:
    engine = EngineConfig(kind="plain", ranks=1)
    changes = {"engine": engine, "record_steps": (), "probe_every": training.steps}
    return training.model_copy(update=changes)


@dataclass(frozen=True)
class Removal:
    """A set of pairs that was left out: two forecasts, and what the training without it changed.

    `answer`: place of the one whose fall they are blamed for; None for drawn pairs.
    """

    size: int
    answer: int | None
    forecast: Changes
    plain: Changes
    trained: Changes


class Trainings:
    """A study's DPO, trained on some of its pairs."""

    def __init__(self, study: StudyParameters, home: Path) -> None:
        self.lab, self.study = InProcess(home), study
        self.results: dict[str, StageResult] = {}
        self.results = self._run({}, {"data", "base", "sft", "preference", "ledger"})
        folders = (self.lab.folder(self.results[name]) for name in ("ledger", "data"))
        self.ledger = read_ledger(*folders)
        self.answers = [account.row for account in fallen_accounts(self.ledger)]

    def _run(self, changes: Mapping[str, object], names: Collection[str]) -> dict[str, StageResult]:
        study = self.study.model_copy(update=changes)
        steps = [step for step in study_steps(study) if step.name in names]
        return self.lab.run_steps(steps, self.results)

    def ends(self, result: StageResult) -> Changes:
        """log π of the answers at the training's end."""
        scores = self.lab.rows(result, "probes.jsonl", ProbeScore)
        logps = {(score.kind, score.pair_id): score.logp for score in scores}
        return np.array([logps[row.kind, row.pairs[0]] for row in self.answers])

    def reordered(self, seed: int) -> Changes:
        """What another order of the rows changes."""
        preference = self.study.preference.model_copy(update={"seed": seed})
        changes = {"preference": preference, "ledger": None}
        again = self._run(changes, {"preference"})["preference"]
        return self.ends(again) - self.ends(self.results["preference"])

    def without(self, pairs: list[str], answer: int | None) -> Removal:
        removed = {"preference_filter": FilterConfig(pairs=tuple(pairs)), "ledger": None}
        again = self._run(removed, {"filter", "preference"})["preference"]
        forecasts = [self.ledger.without(pairs, refilled=on) for on in (True, False)]
        trained = self.ends(again) - self.ends(self.results["preference"])
        refilled, plain = (
            np.array([forecast[row.name] for row in self.answers]) for forecast in forecasts
        )
        return Removal(len(pairs), answer, refilled, plain, trained)


def removal_sets(ledger: LedgerReader, answers: int) -> list[tuple[list[str], int | None]]:
    """Sets of pairs, and the place of the answer whose fall each is blamed for."""
    random, sets = np.random.default_rng(0), list[tuple[list[str], int | None]]()
    for size in SIZES:
        for place, account in enumerate(fallen_accounts(ledger)[:answers]):
            hardest = ledger.pushers(account.lines)[:size]
            sets.append(([push.example for push in hardest], place))
        for _ in range(DRAWN):
            sets.append((random.choice(ledger.examples, size, replace=False).tolist(), None))
    return sets


def removals(data: str, seed: int, home: Path) -> dict[str, float]:
    """Figures of one seed."""
    trainings = Trainings(study_of(data, seed), home)
    order = np.concatenate([trainings.reordered(order) for order in ORDERS])
    sets = removal_sets(trainings.ledger, SETS[data])
    done = [trainings.without(pairs, answer) for pairs, answer in sets]
    figures = {"order_nats": rms(order)} | figures_of(done, "")
    for size in SIZES:
        figures |= figures_of([removal for removal in done if removal.size == size], f"_{size}")
    print(data, seed, json.dumps(figures), file=sys.stderr, flush=True)
    return figures


def figures_of(removed: Sequence[Removal], label: str) -> dict[str, float]:
    """Figures of some sets."""
    drawn = [removal for removal in removed if removal.answer is None]
    blamed = [removal for removal in removed if removal.answer is not None]
    figures = errors(blamed, "") | errors(drawn, "drawn_")
    # Of each blamed set the answer that it is blamed for.
    trained, forecast, plain, other = np.array(
        [
            [
                *(values[removal.answer] for values in of_set(removal)),
                np.mean([d.trained[removal.answer] for d in drawn if d.size == removal.size]),
            ]
            for removal in blamed
        ]
    ).T
    for name, values in (("", forecast), ("_plain", plain), ("_drawn", other)):
        reached = np.isfinite(values)
        ratio = values[reached].sum() / trained[reached].sum() if reached.any() else np.nan
        figures[f"removal_forecast_over_trained{name}"] = ratio
        told = ~np.isnan(values)
        figures[f"removal_signs_right{name}"] = share(values[told] * trained[told] > 0)
    figures["removal_forecasts_told"] = share(~np.isnan(forecast))
    figures["blamed_nats"] = rms(trained)
    return {f"{name}{label}": float(value) for name, value in figures.items()}


def of_set(removal: Removal) -> tuple[Changes, Changes, Changes]:
    return removal.trained, removal.forecast, removal.plain


def errors(removed: Sequence[Removal], prefix: str) -> dict[str, float]:
    """Of all answers."""
    trained, forecast, plain = (
        np.concatenate(part) for part in zip(*map(of_set, removed), strict=True)
    )
    return {
        f"{prefix}removal_error": error(forecast, trained),
        f"{prefix}removal_error_plain": error(plain, trained),
        f"{prefix}removal_correlation": correlation(forecast, trained),
        f"{prefix}removal_correlation_plain": correlation(plain, trained),
        f"{prefix}beyond_first_order": share(np.isinf(forecast)),
    }


def error(forecast: Changes, trained: Changes) -> float:
    reached = np.isfinite(forecast)
    miss, size = rms(forecast[reached] - trained[reached]), rms(trained[reached])
    return miss / size if size else np.nan


def correlation(forecast: Changes, trained: Changes) -> float:
    reached = np.isfinite(forecast)
    if reached.sum() < 2:
        return np.nan
    return float(np.corrcoef(forecast[reached], trained[reached])[0, 1])


def share(values: Bool[np.ndarray, " answers"]) -> float:
    return float(values.mean()) if values.size else np.nan


def rms(values: Changes) -> float:
    return float(np.sqrt((values**2).mean())) if values.size else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", choices=list(FILES), default=["builtin"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--home", type=Path, help="keeps trainings for another run")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        home = (arguments.home or Path(folder)).resolve()
        for data in arguments.data:
            seeds = [removals(data, seed, home) for seed in arguments.seeds]
            intervals = {
                name: mean_interval([figures[name] for figures in seeds]).as_dict()
                for name in seeds[0]
            }
            print(json.dumps({data: intervals}), flush=True)


if __name__ == "__main__":
    main()
