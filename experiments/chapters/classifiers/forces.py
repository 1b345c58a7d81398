"""Kernels and forces of classifiers: what each training image does to every watched image.

`Δ log p(x_o) = −η/B Σ_u A_o K_ou G_u + O(η²)`, A = I − 1pᵀ, K = J_o J_uᵀ, G = p − t (Ren &
Sutherland, arXiv 2407.10490, prop. 1).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import vjp, vmap

from dynolab.forces.function.checks import check_finite
from dynolab.forces.function.weights import call_at

ENTRIES = 2**27
"""Most gradient entries held at once for each side, half a gigabyte in float32."""


def pull_of(logits: Float[Tensor, "images classes"]) -> Float[Tensor, "images classes classes"]:
    """`A = I − 1 pᵀ`: ∂ log p/∂z of every image; row k is the gradient of log p_k."""
    p = logits.softmax(-1)
    return torch.eye(p.shape[-1], dtype=p.dtype, device=p.device) - p[:, None, :]


def force_of(
    logits: Float[Tensor, "images classes"], targets: Float[Tensor, "images classes"]
) -> Float[Tensor, "images classes"]:
    """`G = p − t`: ∂/∂z of the cross-entropy with targets t."""
    return logits.softmax(-1) - targets


@torch.no_grad()
def pair_forces(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    updating: Float[Tensor, "updating ..."],
    targets: Float[Tensor, "updating classes"],
    learning_rate: float,
) -> Float[Tensor, "observed updating classes"]:
    """`−η A_o K_ou G_u`: what a gradient step on u alone does to all of o's log-probabilities.

    **Returns:** nats, first order; the step on a batch is the mean of its images' entries.
    """
    pull, force = pull_of(model(observed)), force_of(model(updating), targets)
    products = gradient_gram(model, observed, pull, updating, force[:, None])
    return -learning_rate * products.squeeze(-1)


@torch.no_grad()
def label_forces(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    labels: Int[Tensor, " observed"],
    updating: Float[Tensor, "updating ..."],
    targets: Float[Tensor, "updating classes"],
    learning_rate: float,
) -> Float[Tensor, "observed updating"]:
    """`pair_forces` on one class of each observed image, at the cost of one backward pass per
    side; its sum over the steps of a training is the accumulated influence of u on o."""
    pull = pull_of(model(observed))[torch.arange(len(labels)), labels]
    force = force_of(model(updating), targets)
    products = gradient_gram(model, observed, pull[:, None], updating, force[:, None])
    return -learning_rate * products[..., 0, 0]


def classifier_kernel(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    updating: Float[Tensor, "updating ..."],
    classes: int,
) -> Float[Tensor, "observed updating classes classes"]:
    """`K_ou = J_o J_uᵀ` of all pairs of images, V × V each, J = ∂ logits/∂θ."""
    units = torch.eye(classes, dtype=observed.dtype, device=observed.device)
    left, right = (units.expand(len(side), -1, -1) for side in (observed, updating))
    return gradient_gram(model, observed, left, updating, right)


def centred_norms(
    kernel: Float[Tensor, "observed updating classes classes"],
) -> Float[Tensor, "observed updating"]:
    """`‖C K C‖_F`, C = I − 11ᵀ/V: without the shift of all logits, which changes no probability."""
    centred = kernel - kernel.mean(-1, keepdim=True)
    centred = centred - centred.mean(-2, keepdim=True)
    return centred.flatten(2).norm(dim=-1)


@torch.no_grad()
def gradient_gram(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    observed_cotangents: Float[Tensor, "observed left classes"],
    updating: Float[Tensor, "updating ..."],
    updating_cotangents: Float[Tensor, "updating right classes"],
) -> Float[Tensor, "observed updating left right"]:
    """`⟨J_oᵀ c_o, J_uᵀ c_u⟩` of all images' cotangents, J = ∂ logits/∂θ at the model's weights.

    With unit vectors as cotangents it is the tangent kernel; with a force on the updating side and
    `e_y − π` on the observed one, it is minus the push of u on o's log π_y.

    **Raises:** `ConfigError` for weights that are not finite.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}
    check_finite("weights", weights)
    most = max(observed_cotangents.shape[1], updating_cotangents.shape[1])
    together = max(1, ENTRIES // (most * sum(w.numel() for w in weights.values())))

    def gradients(image: Tensor, cotangents: Tensor) -> Float[Tensor, "cotangents parameters"]:
        _, back = vjp(lambda w: call_at(model, w, image[None])[0], weights)  # type: ignore[misc]
        (parts,) = vmap(back)(cotangents)
        return torch.cat([part.flatten(1) for part in parts.values()], 1)

    def blocks(images: Tensor, cotangents: Tensor) -> Iterator[Tensor]:
        for low in range(0, len(images), together):
            block = slice(low, low + together)
            yield vmap(gradients)(images[block], cotangents[block])

    rows = [
        torch.cat(
            [
                torch.einsum("olp,urp->oulr", ours, theirs)
                for theirs in blocks(updating, updating_cotangents)
            ],
            1,
        )
        for ours in blocks(observed, observed_cotangents)
    ]
    return torch.cat(rows)
