"""Learning paths of classifiers: how an example's prediction moves in the probability simplex."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from dynolab.chapters.classifiers.many import ManyModels, Stacked

SMOOTHING = 0.5
"""Weight of the past in the moving average that smooths out the jitter of single steps."""


def filtered(
    path: Float[Tensor, "times *examples classes"], smoothing: float = SMOOTHING
) -> Float[Tensor, "times *examples classes"]:
    """`p̄_t = s p̄_{t−1} + (1 − s) p_t` from `p̄_0 = p_0`; p̄ keeps its value where p_t is NaN.

    Leading NaNs of an example stay NaN.
    """
    average, averages = path[0], []
    for p in path:
        mixed = smoothing * average + (1 - smoothing) * p
        average = torch.where(p.isnan(), average, torch.where(average.isnan(), p, mixed))
        averages.append(average)
    return torch.stack(averages)


def zigzag(
    path: Float[Tensor, "times *examples classes"],
    labels: Int[Tensor, "*examples"],
    smoothing: float = SMOOTHING,
) -> Float[Tensor, "*examples"]:
    """How much longer the path to the given label is than a straight line.

    `Z = Σ_t ‖p̄_{t+1} − p̄_t‖ + ‖e_y − p̄_T‖ − ‖e_y − p̄_0‖ ≥ 0`

    with p̄ the filtered path and y the training label. A path that goes straight to the label has
    0; one that first visits another class, or ends there, has the length of its detour. The last
    stretch to e_y counts whether or not training got there, so that an example whose label was
    never learned scores as high as one that turned back late. The papers mention a zig-zag score
    without a formula; this one is our choice.
    """
    smooth = filtered(path, smoothing)
    label = torch.nn.functional.one_hot(labels.long(), path.shape[-1]).to(path)
    start = smooth.gather(0, (~smooth.isnan()).int().argmax(0, keepdim=True)).squeeze(0)
    length = (smooth[1:] - smooth[:-1]).norm(dim=-1).nansum(0)
    return length + (label - smooth[-1]).norm(dim=-1) - (label - start).norm(dim=-1)


def own_changes(
    many: ManyModels,
    weights: Stacked,
    inputs: Float[Tensor, "models batch ..."],
    labels: Int[Tensor, "models batch"],
    rate: float,
) -> Float[Tensor, "models batch"]:
    """Change of each example's label log p under its own share of a step, in nats.

    `log p_y(w + rate ∇ log p_y) − log p_y(w)`, `rate` = η/B: measured rather than to first
    order, because wrong labels have steep gradients and `rate ‖∇ log p_y‖²` overshoots far. To
    first order an example always pulls its own label up.
    """

    def logp(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(many.module, own, (x[None],))[0]
        return logits.log_softmax(-1).gather(0, y[None])[0]

    def change(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        gradients, before = grad_and_value(logp)(own, x, y)
        return logp({name: w + rate * gradients[name] for name, w in own.items()}, x, y) - before

    changes: Tensor = vmap(vmap(change, (None, 0, 0)))(dict(weights), inputs, labels)
    return changes


def base_difficulty(
    truth: Float[Tensor, "examples classes"], labels: Int[Tensor, " examples"]
) -> Float[Tensor, " examples"]:
    """`‖e_y − p*‖₂`: distance of the training label from the truth, 0 to √2."""
    label = torch.nn.functional.one_hot(labels.long(), truth.shape[-1]).to(truth)
    return (label - truth).norm(dim=-1)
