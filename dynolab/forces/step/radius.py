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
    η_t`, and leave the share that the change up to k left. Between recorded steps k it is
    interpolated in logarithms.

    **Arguments:** `changes`: of steps from one first step on, of which n is the last; `rates`: η by
    step.

    **Returns:** where every share lies on one side of the bound, the radius of the last change, or
    the first one's times its part of Σ η. NaN without any change or rate.
    """
    last = max((own.step for own in changes), default=0)
    parts: dict[float, Validity] = {}
    for own in sorted(changes, key=lambda own: own.step):
        first = own.step if own.since is None else own.since
        whole = sum(rates.get(step, 0.0) for step in range(first, last + 1))
        if whole:
            parts[sum(rates.get(step, 0.0) for step in range(first, own.step + 1)) / whole] = own
    if not parts:
        return math.nan
    inside = crossing(list(parts), [own.unexplained for own in parts.values()])
    if math.isfinite(inside):
        return inside
    end = max(parts) if parts[max(parts)].unexplained <= UNEXPLAINED else min(parts)
    return end * parts[end].predicted
