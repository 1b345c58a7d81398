"""The tangent kernel of a classifier's logits, exact, and how strongly classes are coupled."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from dynolab.forces.classifiers.gram import gradient_gram


def classifier_kernel(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    updating: Float[Tensor, "updating ..."],
    classes: int,
) -> Float[Tensor, "observed updating classes classes"]:
    """`K_ou = J_o J_uᵀ` of all pairs of images, V × V each, J = ∂ logits/∂θ.

    `−η A_o K_ou G_u` is the push of an update on u on all of o's log-probabilities.
    """
    left, right = (_units(len(side), classes, side) for side in (observed, updating))
    return gradient_gram(model, observed, left, updating, right)


def centred_norms(
    kernel: Float[Tensor, "observed updating classes classes"],
) -> Float[Tensor, "observed updating"]:
    """`‖C K C‖_F`, C = I − 11ᵀ/V: without the shift of all logits, which no probability sees."""
    centred = kernel - kernel.mean(-1, keepdim=True)
    centred = centred - centred.mean(-2, keepdim=True)
    return centred.flatten(2).norm(dim=-1)


def class_means(
    values: Float[ndarray, "observed updating"],
    observed: Int[ndarray, " observed"],
    updating: Int[ndarray, " updating"],
    classes: int,
    *,
    same: bool = False,
) -> Float[ndarray, "classes classes"]:
    """Mean over the pairs of images of every two classes, observed by updating.

    A pair of classes without a pair of images has NaN.

    **Arguments:** `same`: both sides are the same images; then no image is paired with itself.
    """
    kept = 1 - np.eye(*values.shape) if same else np.ones(values.shape)
    rows, columns = np.eye(classes)[observed], np.eye(classes)[updating]
    with np.errstate(invalid="ignore"):
        return (rows.T @ (values * kept) @ columns) / (rows.T @ kept @ columns)


def _units(images: int, classes: int, like: Tensor) -> Float[Tensor, "images classes classes"]:
    return torch.eye(classes, dtype=like.dtype, device=like.device).expand(images, -1, -1)
