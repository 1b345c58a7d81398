"""The squeezing index: the share of all risen probability that the argmax took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length, collate
from dynolab.data.encode import Encoded
from dynolab.grouping import grouped
from dynolab.results.study import RisenMass
from dynolab.statistics import Interval, ratio_interval

Logits = Callable[[TokenBatch], Float[Tensor, "tokens vocabulary"]]
"""A policy: a `ResponseLogits`, or a `PolicyFunction`'s `logits` at given weights."""

_PAD_ID = 0  # padding is masked and right of every response, so any id will do


def risen_mass(
    before: Float[Tensor, "tokens vocabulary"],
    after: Float[Tensor, "tokens vocabulary"],
    token: Int[Tensor, " tokens"],
) -> Float[Tensor, "tokens 3"]:
    """`Σ_i (Δπ_i)₊`, `Δπ(argmax)₊` and `Δπ(y)₊` at every position.

    The argmax is that of `before`: a negative gradient moves probability to the token that is
    likeliest at the step, not to the one that is likeliest afterwards.

    **Arguments:** `before`, `after`: logits; `token`: the answer's own tokens y.
    """
    risen = (after.softmax(-1) - before.softmax(-1)).clamp_(min=0)
    seen = torch.stack([before.argmax(-1), token], dim=-1)
    return torch.cat([risen.sum(-1, keepdim=True), risen.gather(-1, seen)], dim=-1)


@torch.no_grad()
def answers_risen_mass(
    before: Logits,
    after: Logits,
    answers: Sequence[Encoded],
    *,
    batch_tokens: int = 2_048,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "answers 3"]:
    """`risen_mass` of teacher-forced answers, summed over each one's positions, in float64.

    **Arguments:** `batch_tokens`: maximum of answers × padded length of one forward.
    """
    sums = torch.zeros(len(answers), 3, dtype=torch.float64)
    for members in by_length(answers, batch_tokens):
        batch = collate([answers[member] for member in members], _PAD_ID).to(device)
        mass = risen_mass(before(batch), after(batch), batch.token)
        sums[members] = batch.sequence_sum(mass.double()).cpu()
    return sums


def chosen_by_step(rows: Iterable[RisenMass]) -> dict[str, dict[int, list[RisenMass]]]:
    """The rows of the chosen answers of training pairs, by training and step."""
    trainings = grouped(
        (row.training, row) for row in rows if (row.split, row.kind) == ("train", "chosen")
    )
    return {
        name: grouped((row.step, row) for row in of_training)
        for name, of_training in trainings.items()
    }


def squeeze_index(rows: Sequence[RisenMass]) -> Interval:
    """`squeeze/index` = Σ_l Δπ(argmax)₊ / Σ_l Σ_i (Δπ_i)₊ over the positions of all rows.

    0: none of the risen probability went to the argmax; 1: all of it. The interval is the
    jackknife's over pairs.
    """
    return _share(rows, [row.argmax for row in rows])


def own_share(rows: Sequence[RisenMass]) -> Interval:
    """The share of all risen probability that the answers' own tokens took."""
    return _share(rows, [row.own for row in rows])


def _share(rows: Sequence[RisenMass], part: Sequence[float]) -> Interval:
    pairs = np.array([row.pair_id for row in rows])
    return ratio_interval(np.array(part), np.array([row.risen for row in rows]), pairs)
