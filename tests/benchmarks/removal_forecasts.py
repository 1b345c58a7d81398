"""Forecasts of training without some pairs, beside trainings without them.

    python -m tests.benchmarks.removal_forecasts

The built-in study of seed 0, with DPO in one process, and its ledger; then the same DPO on files
without the rows of sets of 1, 5 and 20 pairs: of each size `BLAMED`, which pulled one of the
answers that fell most down hardest, and as many drawn. Answers are the ledger's single ones, which
fell most. Prints one JSON object. N is the size of the sets; without N: of all sizes.

- `removal_forecast_over_trained_N`: Σ over blamed sets of what the ledger says that the answer
  whose fall they are blamed for ends higher (`LedgerReader.without`), over Σ of what it did;
  `…_plain_N`: without the places that other pairs take. `removal_signs_right_N`: share of these
  answers that moved as forecast. `all_removal_…`: the same of all answers, whose changes partly
  cancel.
- `removal_error_N`, `removal_error_plain_N`: root mean square of forecast less trained over that of
  trained, of all sets; `removal_correlation_N`, of drawn ones: `drawn_removal_…_N`.
- `order_nats`: root mean square of what the training in another order of its rows changes, of which
  no forecast knows anything; `trained_nats_N`: of the removals.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from dynolab.report.ledger.fallen import fallen_accounts
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.study import ProbeScore
from flows.study.steps import study_steps
from tasks.audit import FilterConfig
from tasks.runtime.work import StageResult
from tests.benchmarks.figures import main
from tests.flows.in_process import InProcess
from tests.study.arms import study_parameters

SIZES, BLAMED = (1, 5, 20), 5
PLAIN = ["sft", "preference"]
SETTINGS = [
    change
    for name in PLAIN
    for change in (f"{name}.engine={{kind: plain, ranks: 1}}", f"{name}.record_steps=[]")
]
Changes = Float[np.ndarray, " answers"]


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
    """The study's DPO, trained on some of its pairs."""

    def __init__(self, folder: Path) -> None:
        self.lab, self.study = InProcess(folder / "home"), study_parameters(0, SETTINGS)
        self.results: dict[str, StageResult] = {}
        self.results = self._run({}, {"data", "base", "sft", "preference", "ledger"})
        folders = (self.lab.folder(self.results[name]) for name in ("ledger", "data"))
        self.ledger = read_ledger(*folders)
        self.answers = [account.row.name for account in fallen_accounts(self.ledger)]

    def _run(self, changes: dict[str, object], names: Collection[str]) -> dict[str, StageResult]:
        study = self.study.model_copy(update=changes)
        steps = [step for step in study_steps(study) if step.name in names]
        return self.lab.run_steps(steps, self.results)

    def ends(self, result: StageResult) -> Changes:
        """log π of the answers at the training's end."""
        scores = self.lab.rows(result, "probes.jsonl", ProbeScore)
        chosen = {score.pair_id: score.logp for score in scores if score.kind == "chosen"}
        return np.array([chosen[name] for name in self.answers])

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
            np.array([forecast[name] for name in self.answers]) for forecast in forecasts
        )
        figures = [round(float(values.mean()), 3) for values in (refilled, plain, trained)]
        print(len(pairs), answer, figures, file=sys.stderr, flush=True)
        return Removal(len(pairs), answer, refilled, plain, trained)


def removal_sets(ledger: LedgerReader) -> list[tuple[list[str], int | None]]:
    """Sets of pairs, and the place of the answer whose fall each is blamed for."""
    random, sets = np.random.default_rng(0), list[tuple[list[str], int | None]]()
    for size in SIZES:
        for place, account in enumerate(fallen_accounts(ledger)[:BLAMED]):
            hardest = ledger.pushers(account.lines)[:size]
            sets.append(([push.example for push in hardest], place))
            sets.append((random.choice(ledger.examples, size, replace=False).tolist(), None))
    return sets


def removals(folder: Path) -> dict[str, float]:
    """Figures of one seed."""
    trainings = Trainings(folder)
    order = np.concatenate([trainings.reordered(seed) for seed in (101, 102, 103)])
    done = [trainings.without(*blamed) for blamed in removal_sets(trainings.ledger)]
    figures = {"order_nats": rms(order)}
    for size in SIZES:
        figures |= figures_of([removal for removal in done if removal.size == size], f"_{size}")
    return figures | figures_of(done, "")


def figures_of(removed: list[Removal], label: str) -> dict[str, float]:
    """Figures of some sets."""
    figures = {}
    parts = ("forecast", "plain", "trained")
    for prefix, blamed in (("", True), ("drawn_", False)):
        sets = [removal for removal in removed if (removal.answer is not None) == blamed]
        forecast, plain, trained = (
            np.concatenate([getattr(removal, part) for removal in sets]) for part in parts
        )
        if blamed:
            figures |= sums(forecast, plain, trained, "all_removal")
            # Of each set the answer that it is blamed for.
            of_answers = [
                np.array([getattr(removal, part)[removal.answer] for removal in sets])
                for part in parts
            ]
            figures |= sums(*of_answers, "removal")
        figures |= {
            f"{prefix}removal_error": rms(forecast - trained) / rms(trained),
            f"{prefix}removal_error_plain": rms(plain - trained) / rms(trained),
            f"{prefix}removal_correlation": float(np.corrcoef(forecast, trained)[0, 1]),
            f"{prefix}trained_nats": rms(trained),
        }
    return {f"{name}{label}": float(value) for name, value in figures.items()}


def sums(forecast: Changes, plain: Changes, trained: Changes, name: str) -> dict[str, float]:
    """Forecasts over what was trained, in the sum, and the share of right signs."""
    return {
        f"{name}_forecast_over_trained": forecast.sum() / trained.sum(),
        f"{name}_forecast_over_trained_plain": plain.sum() / trained.sum(),
        f"{name}_signs_right": float((forecast * trained > 0).mean()),
    }


def rms(values: Changes) -> float:
    return float(np.sqrt((values**2).mean()))


if __name__ == "__main__":
    main({"removals": removals})
