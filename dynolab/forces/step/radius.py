"""Where a share of what first order leaves unexplained crosses its bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dynolab.results.forces import UNEXPLAINED, Validity


def crossing(
    multiples: Sequence[float], shares: Sequence[float], bound: float = UNEXPLAINED
) -> float:
    """The multiple where a share first exceeds the bound, by interpolation in logarithms.

    NaN where all shares lie on one side.
    """
    for (low, below), (high, above) in pairwise(zip(multiples, shares, strict=True)):
        if below <= bound < above:
            start, stop = (math.log(max(share, 1e-30)) for share in (below, above))
            return low * (high / low) ** ((math.log(bound) - start) / (stop - start))
    return math.nan


def rate_radius(changes: Sequence[Validity], rates: Mapping[int, float]) -> float:
    """The multiple of its learning rates at which a training's steps together leave `UNEXPLAINED`.

    Small steps follow a flow whose time is the sum of the rates η. With m times the rates, steps up
    to n go about as far along the same path as those up to k did, where `Σ_{t≤k} η_t = m Σ_{t≤n}
    η_t`. The radius r_k of the change up to step k stretches that change alone and knows nothing of
    the path; where r_k = 1 nothing needs to be stretched. Between recorded steps k it is
    interpolated in logarithms.

    **Arguments:** `changes`: of steps from one first step on, of which n is the last; `rates`: η by
    step.

    **Returns:** where every radius lies on one side of 1, that of the last change, or the first
    one's times its part of Σ η. NaN without any radius, or without rates.
    """
    last = max((own.step for own in changes), default=0)
    radii: dict[float, float] = {}
    for own in sorted(changes, key=lambda own: own.step):
        first = own.step if own.since is None else own.since
        whole = sum(rates.get(step, 0.0) for step in range(first, last + 1))
        if whole and math.isfinite(own.predicted):
            part = sum(rates.get(step, 0.0) for step in range(first, own.step + 1)) / whole
            radii[part] = own.predicted
    if not radii:
        return math.nan
    inside = crossing(list(radii), [1 / radius for radius in radii.values()], 1.0)
    if math.isfinite(inside):
        return inside
    end = max(radii) if min(radii.values()) > 1 else min(radii)
    return end * radii[end]
