"""How a task head moves features in finetuning: energy and direction before, adaptation after.

One step of gradient descent on the features' own logits moves a feature vector along

    −∂L/∂h = (∂z/∂h)ᵀ (e_y − p),

whose size depends on the *energy* ‖e_y − p‖ and whose *direction* on the head, ∂z/∂h (Ren et al.,
*How to Prepare Your Task Head for Finetuning*, arXiv 2302.05779).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

Head = Callable[[Float[Tensor, "... features"]], Float[Tensor, "... classes"]]


def energy(
    logits: Float[Tensor, "examples classes"], labels: Int[Tensor, " examples"]
) -> Float[Tensor, ""]:
    """`E ‖e_y − p‖₂`: from 0 if every label is certain to √2 if wrong ones are."""
    target = functional.one_hot(labels.long(), logits.shape[-1]).to(logits.dtype)
    return (target - logits.softmax(-1)).norm(dim=-1).mean()


def feature_forces(
    head: Head, features: Float[Tensor, "examples features"], labels: Int[Tensor, " examples"]
) -> Float[Tensor, "examples features"]:
    """`−∂L/∂h = (∂z/∂h)ᵀ (e_y − p)` for each example's cross-entropy and a head of any depth."""

    def logp(h: Tensor, y: Tensor) -> Tensor:
        return head(h).log_softmax(-1).gather(-1, y[None])[0]

    return vmap(grad(logp))(features, labels.long())


def direction_consistency(
    forces: Float[Tensor, "examples features"], labels: Int[Tensor, " examples"], classes: int
) -> Float[Tensor, ""]:
    """Mean cosine between the forces on two different examples of the same class.

    With unit forces u of a class of n: `(‖Σ u‖² − Σ ‖u‖²)/(n(n − 1))`; the mean is over
    classes with more than one example. At 1 a class moves as one; at 0 its examples move apart as
    much as together. An example with zero force has no direction and counts as 0.
    """
    units = functional.normalize(forces, dim=-1)
    members = functional.one_hot(labels.long(), classes).to(forces.dtype)
    counts = members.sum(0)
    together = (members.T @ units).square().sum(-1) - members.T @ units.square().sum(-1)
    several = (counts > 1).to(forces.dtype)
    cosines = together / (counts * (counts - 1)).clamp(min=1)
    return (cosines * several).sum() / several.sum().clamp(min=1)


def mismatch(
    forces: Float[Tensor, "examples features"], labels: Int[Tensor, " examples"], classes: int
) -> Float[Tensor, ""]:
    """Energy–direction mismatch: the part of the squared forces that classes do not share.

    `1 − Σ_c n_c ‖f̄_c‖² / Σ_i ‖f_i‖²` with f̄_c the mean force of class c: 0 if all examples of a
    class are pushed alike, 1 if their pushes cancel. With high energy it indicates failure:
    features then move far, but not together.
    """
    members = functional.one_hot(labels.long(), classes).to(forces.dtype)
    counts = members.sum(0)
    means = (members.T @ forces) / counts.clamp(min=1)[:, None]
    size = forces.square().sum()
    shared = (counts * means.square().sum(-1)).sum()
    return 1 - shared / size.clamp(min=torch.finfo(forces.dtype).tiny)


def adaptation(
    before: Float[Tensor, "examples features"],
    after: Float[Tensor, "examples features"],
    forces: Float[Tensor, "examples features"],
) -> dict[str, float]:
    """How far finetuning moved features h from their start h⁰; means over examples.

    `distance` ‖h − h⁰‖₂, `cosine` of h and h⁰, `dot_product` ⟨h, h⁰⟩, `norm` ‖h‖₂, and `followed`,
    the cosine between h − h⁰ and the force on the feature before the first step: whether features
    moved in the direction of the first push.
    """
    moved = after - before
    values = {
        "distance": moved.norm(dim=-1),
        "cosine": functional.cosine_similarity(before, after, dim=-1),
        "dot_product": (before * after).sum(-1),
        "norm": after.norm(dim=-1),
        "followed": functional.cosine_similarity(moved, forces, dim=-1),
    }
    return {name: float(value.mean()) for name, value in values.items()}
