"""Which steps of a long training are accounted for, and how many steps each stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def sampled_steps(steps: Sequence[int], every: int, seed: int) -> dict[int, int]:
    """The first and the last step, and one drawn of every `every` steps between them.

    A total over all steps is estimated by Σ weight · value, without bias
    (`dynolab.statistics.stratified_total`).

    **Arguments:** `steps`: rising; `every`: 1 takes all.

    **Returns:** each step's weight: the number of steps it stands for.
    """
    if every == 1 or len(steps) <= 2:
        return dict.fromkeys(steps, 1)
    drawn = np.random.default_rng(seed)
    weights = {steps[0]: 1}
    inner = steps[1:-1]
    for start in range(0, len(inner), every):
        stratum = inner[start : start + every]
        weights[int(drawn.choice(stratum))] = len(stratum)
    return {**weights, steps[-1]: 1}
