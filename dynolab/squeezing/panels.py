"""Softmax regression `z = W x` under gradient steps: four panels, and the effect of the shape.

Tables, log-probabilities in nats:

- `panels`: `before` and `after` some `steps`, of all classes; `label` is the class y.
- `shapes`: one push on distributions of one shape. `shape` names the quantity that is varied
  (`sharpness`, the factor on random logits, or `label_probability`, p_y) and `value` its value.
  Means over `cases` with 95% intervals: `fall`, the share of the other classes that fall, and
  `gain`, Δ log p of the likeliest other class.
- `step_paths`: `change`, Δ log p of some classes of one distribution by the size of the push.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.squeezing.rule import likeliest_other, stepped
from dynolab.statistics import mean_interval

FLAT, PEAKED = 0.3, 3.0
MODERATE = 1.0
"""Standard deviations of normal logits: flat and peaked in the panels, moderate in the paths."""

FEATURES = 4
LEARNING_RATE, STEPS = 0.5, 8
SHARPNESS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LABEL_PROBABILITY = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def panels(classes: int, seed: int) -> list[dict[str, Any]]:
    """A positive update, and negative ones on a flat distribution, a peak's flank and a valley.

    The sources do not give scales, steps and classes: here flat logits have standard deviation
    0.3, peaked ones 3; the class is the median one of the flat distribution, the second
    likeliest of the peaked one (flank), and its least likely (valley).
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
    x = x / x.norm()
    flat, peaked = (
        scale * torch.randn(classes, FEATURES, generator=generator, dtype=torch.float64)
        for scale in (FLAT, PEAKED)  # as ‖x‖ = 1, the standard deviations of the logits
    )
    by_rank = {id(w): (w @ x).argsort(descending=True).tolist() for w in (flat, peaked)}
    middle = by_rank[id(flat)][classes // 2]
    second, last = by_rank[id(peaked)][1], by_rank[id(peaked)][-1]
    return [
        _panel("positive", flat, x, middle, 1),
        _panel("negative, flat", flat, x, middle, -1),
        _panel("negative, flank of a peak", peaked, x, second, -1),
        _panel("negative, valley", peaked, x, last, -1),
    ]


def _panel(name: str, weights: Tensor, x: Tensor, label: int, sign: int) -> dict[str, Any]:
    before = (weights @ x).log_softmax(-1)
    return {
        "name": name,
        "classes": len(weights),
        "label": label,
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "before": before.tolist(),
        "after": regression_steps(weights, x, label, sign * LEARNING_RATE, STEPS).tolist(),
    }


def regression_steps(
    weights: Float[Tensor, "classes features"],
    x: Float[Tensor, " features"],
    label: int,
    rate: float,
    steps: int,
) -> Float[Tensor, " classes"]:
    """log p at x after gradient descent on `−log p_y(x)`; a negative rate ascends.

    `W' = W + η (e_y − p) xᵀ`, so `z' = z + η ‖x‖² (e_y − p)`.
    """
    logp = (weights @ x).log_softmax(-1)
    size = float(rate * x.square().sum())
    for _ in range(steps):
        logp = stepped(logp, torch.tensor(label), size)
    return logp


def shape_points(
    count: int, classes: int, seed: int, step: float = 1.0
) -> Iterator[dict[str, Any]]:
    """How many classes fall, and what i* gains, by sharpness and by p_y, under a push of size η.

    By sharpness: normal logits times a factor, a random class. By p_y: normal logits (factor 1)
    whose label holds that probability.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator, dtype=torch.float64)
    label = torch.randint(classes, (count,), generator=generator)
    for factor in SHARPNESS:
        logp = (factor * logits).log_softmax(-1)
        yield _point("sharpness", factor, logp, label, step)
    rest = logits.scatter(1, label[:, None], -torch.inf).log_softmax(-1)
    for probability in LABEL_PROBABILITY:
        p = torch.tensor(probability, dtype=torch.float64)
        logp = (rest + (1 - p).log()).scatter(1, label[:, None], p.log().expand(count, 1))
        yield _point("label_probability", probability, logp, label, step)


def _point(
    shape: str,
    value: float,
    logp: Float[Tensor, "cases classes"],
    label: Int[Tensor, " cases"],
    step: float,
) -> dict[str, Any]:
    change = stepped(logp, label, -step) - logp
    falls = (change < 0).scatter(1, label[:, None], False).sum(1) / (logp.shape[1] - 1)
    gains = change.gather(1, likeliest_other(logp, label)[:, None]).squeeze(1)
    fall, gain = mean_interval(falls.double().numpy()), mean_interval(gains.numpy())
    return {
        "shape": shape,
        "classes": logp.shape[1],
        "value": value,
        "cases": len(label),
        "fall": fall.mean,
        "fall_low": fall.low,
        "fall_high": fall.high,
        "gain": gain.mean,
        "gain_low": gain.low,
        "gain_high": gain.high,
    }


def step_paths(classes: int, seed: int, sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Δ log p by the size of a push on the median class of a moderately peaked softmax.

    Of the pushed class, of the likeliest other, and of others from likely to unlikely ones.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = MODERATE * torch.randn(classes, generator=generator, dtype=torch.float64)
    logp = logits.log_softmax(-1)
    ranks = logp.argsort(descending=True).tolist()
    label = ranks[classes // 2]
    changes = torch.stack([stepped(logp, torch.tensor(label), -size) for size in sizes]) - logp
    others = {round(rank) for rank in np.geomspace(1, classes - 1, 16)} - {classes // 2}
    roles = [
        ("pushed", label),
        ("likeliest other", ranks[0]),
        *((f"rank {rank + 1}", ranks[rank]) for rank in sorted(others)),
    ]
    return [
        {
            "role": role,
            "probability": float(logp[index].exp()),
            "steps": list(sizes),
            "change": changes[:, index].tolist(),
        }
        for role, index in roles
    ]
