"""One softmax under gradient steps: exactly, to first order, and in pictures.

`L = −s log p_y` has `∂L/∂z = s (p − e_y)`, so a step on it is `z' = z + s (e_y − p)`: s = η > 0
pulls class y up, s = −η < 0 pushes it down (Ren & Sutherland, arXiv 2407.10490, §3.3 and
appendix E).

If all contexts share one head `z_n = W h_n` on features h: with the head alone (fixed features) a
step at context u gives `Δz_o = s (h_o·h_u)(e_y − p_u)` at context o; with features free as well
(the unconstrained features model), at the updated context itself
`Δz = s (‖h‖² I + W Wᵀ)(e_y − p) + s² (e_y − p) ((e_y − p)ᵀ W h)`.

Tables of softmax regression `z = W x`, log-probabilities in nats:

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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dynolab.statistics import mean_interval

Step = float | Float[Tensor, "*batch"]


def stepped(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"], step: Step
) -> Float[Tensor, "*batch classes"]:
    """log p after one step on the logits, `log softmax(z + s (e_y − p))`.

    **Arguments:**

    - `logp`: log-probabilities before, in nats (logits shifted to `log Σ exp z = 0`).
    - `label`: the class y of every row.
    - `step`: s, one for all rows or one for each; below zero pushes y down.
    """
    return (logp + _as_column(step) * force_of(logp, label)).log_softmax(-1)


def force_of(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch classes"]:
    """`e_y − p`, the direction of a step on the logits: the negative gradient of −log p_y."""
    force = -logp.exp()
    return force.scatter_add(-1, label.unsqueeze(-1), torch.ones_like(force[..., :1]))


def first_order(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"], step: Step
) -> Float[Tensor, "*batch classes"]:
    """`Δ log p_i = s ([i = y] − p_i − p_y + Σ_j p_j²) + O(s²)`, in nats.

    `A (e_y − p)` with `A = I − 1pᵀ` = ∂ log p/∂z.
    """
    p = logp.exp()
    chosen = p.gather(-1, label.unsqueeze(-1))
    change = p.square().sum(-1, keepdim=True) - chosen - p
    change.scatter_add_(-1, label.unsqueeze(-1), torch.ones_like(chosen))
    return _as_column(step) * change


def rises(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Bool[Tensor, "*batch classes"]:
    """Which classes an infinitely small push on y raises: `p_i + p_y > Σ_j p_j²`, and i ≠ y.

    The sign of `first_order` for a negative step; y itself always falls.
    """
    p = logp.exp()
    raised = p + p.gather(-1, label.unsqueeze(-1)) > p.square().sum(-1, keepdim=True)
    return raised.scatter(-1, label.unsqueeze(-1), False)


def likeliest_other(
    logp: Float[Tensor, "*batch classes"], label: Int[Tensor, "*batch"]
) -> Int[Tensor, "*batch"]:
    """i* = argmax_{i≠y} p_i, the class that every push on y raises."""
    return logp.scatter(-1, label.unsqueeze(-1), -torch.inf).argmax(-1)


def stepped_elsewhere(
    observed: Float[Tensor, "*batch classes"],
    updated: Float[Tensor, "*batch classes"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p of an observed context after a step of the head on another one.

    **Arguments:** `step`: s h_o·h_u; below zero pushes the label down where both features agree.

    Below zero, the label falls at the observed context too, and the class that is likeliest *at the
    updated context* rises, at any size of step: their logits move least and most of all.
    """
    return (observed + _as_column(step) * force_of(updated, label)).log_softmax(-1)


def stepped_with_features(
    head: Float[Tensor, "*batch classes features"],
    feature: Float[Tensor, "*batch features"],
    label: Int[Tensor, "*batch"],
    step: Step,
) -> Float[Tensor, "*batch classes"]:
    """log p after one gradient step of size s on head and feature together."""
    logits = torch.einsum("...cf,...f->...c", head, feature)
    force = _as_column(step) * force_of(logits.log_softmax(-1), label)
    moved_head = head + force.unsqueeze(-1) * feature.unsqueeze(-2)
    moved_feature = feature + torch.einsum("...c,...cf->...f", force, head)
    return torch.einsum("...cf,...f->...c", moved_head, moved_feature).log_softmax(-1)


def _as_column(step: Step) -> float | Tensor:
    """The step with a last axis, to multiply all classes of its row."""
    return step.unsqueeze(-1) if isinstance(step, Tensor) and step.ndim else step


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
