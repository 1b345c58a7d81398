"""How far first order carries from a step: by its second order, and by longer steps measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import by_length
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.one_step import change_of, second_order
from dynolab.forces.step.step_forces import encode_probes, watch
from dynolab.results.forces import UNEXPLAINED, Validity
from dynolab.training.step_record import StepRecord

_MULTIPLES = tuple(2.0 ** (power / 2) for power in range(-8, 41))
"""Multiples of a step at which the unexplained share is predicted."""

_AROUND = range(-6, 7, 2)
"""Places in `_MULTIPLES`, from the predicted radius, at which the share is measured."""


class Start(NamedTuple):
    """A step, and the weights before it."""

    step: int
    weights: Weights


@torch.no_grad()
def step_validity(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int | None = None,
    since: Start | None = None,
) -> Validity:
    """The radius of validity of first order around a recorded step, or of all steps up to it.

    A step at s times its learning rate changes the weights by s·d, d the realised change; that
    holds for every optimizer here, weight decay and momentum included. First order at the weights
    before the change leaves unexplained `u(s) = Σ(Δ(s) − s·first)² / Σ Δ(s)²` over the watched
    answers, and its radius ends where `u = UNEXPLAINED`: predicted with Δ(s) from logits to second
    order (`SecondOrder.change`), and measured with Δ(s) from forwards.

    **Arguments:** as of `step_forces`, and `since`: an earlier step, from whose weights the change
    starts. Its radius is in units of the whole change, whose direction a training at another rate
    takes only roughly.

    **Raises:** `ConfigError` for a model whose second derivatives are not those of its forward.
    """
    answers = encode_probes(probes, encoder)
    start = record.before if since is None else since.weights
    change = change_of(start, record.after)
    tokens = batch_tokens or policy.batch_tokens
    batches = [
        watch([answers[member] for member in members], start, policy)
        for members in by_length([answer for _, answer in answers], tokens)
    ]
    firsts: list[Tensor] = []
    bent: list[Float[Tensor, "multiples answers"]] = []
    of_softmax = square = 0.0
    for watched in batches:
        batch, view = watched.batch, watched.view
        orders = second_order(policy, start, change, batch, view)
        firsts.append(watched.sums(orders.first))
        bent.append(torch.stack([watched.sums(orders.change(s)) for s in _MULTIPLES]))
        softmax = watched.sums(orders.softmax)
        second = watched.sums(orders.jacobian) + softmax
        of_softmax += float((softmax * second).sum())
        square += float(second.square().sum())
    first, predicted = torch.cat(firsts), torch.cat(bent, dim=1)

    def measured(multiple: float) -> float:
        place = policy.cast(
            {name: torch.lerp(w, record.after[name], multiple) for name, w in start.items()}
        )
        moved = [watched.sums(watched.change(policy, place)) for watched in batches]
        return _unexplained(torch.cat(moved), multiple * first)

    shares = [
        _unexplained(moved, multiple * first)
        for multiple, moved in zip(_MULTIPLES, predicted, strict=True)
    ]
    radius = crossing(_MULTIPLES, shares)
    middle = 1.0 if math.isnan(radius) else radius
    nearest = min(
        range(len(_MULTIPLES)), key=lambda place: abs(math.log(_MULTIPLES[place] / middle))
    )
    places = [nearest + offset for offset in _AROUND if 0 <= nearest + offset < len(_MULTIPLES)]
    taken = {_MULTIPLES[place]: measured(_MULTIPLES[place]) for place in places}
    return Validity(
        stage=stage,
        step=record.facts.step,
        since=None if since is None else since.step,
        learning_rate=record.facts.learning_rate,
        answers=len(first),
        bound=UNEXPLAINED,
        unexplained=measured(1.0),
        predicted=radius,
        measured=crossing(list(taken), list(taken.values())),
        softmax=of_softmax / square if square else math.nan,
    )


def _unexplained(change: Float[Tensor, " answers"], first: Float[Tensor, " answers"]) -> float:
    """`1 − R²` of first order."""
    return float((change - first).square().sum() / change.square().sum())


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
