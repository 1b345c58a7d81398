"""Trainings without some pairs, beside trainings without as many random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynolab.results.arms import ComparedArms, FollowedAnswer
from dynolab.statistics import Interval, mean_interval

RANDOM, NAMED = "random", "id"
"""Ways of `ArmFacts.filtered_by` to leave out pairs: drawn at random, and named."""


@dataclass(frozen=True)
class Removal:
    """What a training without some pairs did to the answers that a comparison follows.

    Each in nats, a mean over the answers, with its interval over seeds: `against_baseline`: less
    their change under the baseline; `against_random`: less that without random pairs, which is the
    effect of *these* pairs, since any smaller set of pairs trains otherwise. `control`: the run
    without random pairs, whose own `against_baseline` is `control_effect`. `pairs`: left out.
    """

    run: str
    control: str
    pairs: int
    against_baseline: Interval
    control_effect: Interval
    against_random: Interval

    @property
    def effects(self) -> dict[str, dict[str, float | int | None]]:
        """The three intervals as `<run>/<name>`, for JSON."""
        return {
            f"{self.run}/against_baseline": self.against_baseline.as_dict(),
            f"{self.run}/control_effect": self.control_effect.as_dict(),
            f"{self.run}/against_random": self.against_random.as_dict(),
        }


def removals(compared: ComparedArms) -> list[Removal]:
    """The runs that leave named pairs out, each beside the run without random ones; none without
    such a control or followed answers.
    """
    ways = {label: facts.filtered_by for label, facts in compared.arms.items()}
    controls = [label for label, way in ways.items() if way == RANDOM]
    if not controls or not compared.followed:
        return []
    control = controls[0]
    effects = []
    for label, way in ways.items():
        if way == NAMED:
            effects.append(
                Removal(
                    run=label,
                    control=control,
                    pairs=len(compared.arms[label].named),
                    against_baseline=_difference(compared.followed, label, compared.baseline),
                    control_effect=_difference(compared.followed, control, compared.baseline),
                    against_random=_difference(compared.followed, label, control),
                )
            )
    return effects


def _difference(answers: Sequence[FollowedAnswer], run: str, other: str) -> Interval:
    """Mean over answers of `run − other`, over seeds; over answers where there is one seed."""
    rows = []
    for answer in answers:
        pairs = zip(answer.changes[run], answer.changes[other], strict=True)
        rows.append([np.nan if a is None or b is None else a - b for a, b in pairs])
    differences = np.array(rows, dtype=float)  # answers × seeds
    if differences.shape[1] == 1:
        return mean_interval(differences[:, 0])
    measured = np.isfinite(differences)
    by_seed = np.where(measured, differences, 0).sum(0) / np.maximum(measured.sum(0), 1)
    return mean_interval(np.where(measured.any(0), by_seed, np.nan))
