"""How strongly responses are coupled: ‖K‖_F of many pairs, estimated with a standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from dynolab.data.batches import TokenBatch, in_groups
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError, DynolabError
from dynolab.forces.function.checks import check_items
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.kernel.operator import Pullback, TangentKernel

RANK, PROBES = 8, 8
ROUNDS = 2
"""Products with K_uu that turn random vectors toward its leading ones."""

Squares = Float[ndarray, "3 *pairs"]
"""`‖K‖²_F` of every pair: an exact part, an estimated rest, and the variance of the rest."""


@dataclass(frozen=True)
class KernelSizes:
    """Norms of every pair of an observed and an updating response, with standard errors.

    `raw`: ‖K‖_F over all position pairs and all logit pairs. `centred`: ‖CKC‖_F, which does not
    change when all logits of a position shift. An error is 0 where K is known exactly.
    """

    raw: Float[ndarray, "observed updating"]
    raw_error: Float[ndarray, "observed updating"]
    centred: Float[ndarray, "observed updating"]
    centred_error: Float[ndarray, "observed updating"]


def kernel_sizes(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Encoded],
    *,
    at: Weights | None = None,
    scale: Weights | None = None,
    rank: int = RANK,
    probes: int = PROBES,
    seed: int = 0,
    memory_bytes: int = 2**30,
) -> KernelSizes:
    """Estimates `‖K_ou‖_F` and `‖C K_ou C‖_F` of every pair, without forming a V×V block.

    K_ou = J_o P J_uᵀ over all positions of both responses; C = I − 11ᵀ/V at each position takes
    out the shift of all logits, which changes no probability. The updating response's logit space
    is the sum of range(C) and its complement, one all-ones vector per position. In each,

        ‖K‖² = ‖K W‖² + E‖R v‖²,   R = K (I − W Wᵀ),   W = orth(K_uu orth(K_uu Ω))

    with v and Ω standard normal: Hutch++ (Meyer et al., arXiv 2010.09649), with a basis W found
    on the updating response alone, so that all observed ones share it. The first term is exact,
    the second unbiased for any W. Its variance is `2‖RᵀR‖²_F/probes`, where the mean of
    ⟨R v_i, R v_j⟩² over i ≠ j estimates the norm: far steadier than the variance of a few
    squares. A subspace of at most rank + probes dimensions is computed exactly.

    The vectors depend only on `seed`, the response's number in `updating` and its shape, so all
    observed responses and all checkpoints share them. Comparisons across either are less noisy
    than the two standard errors suggest.

    **Cost:** each updating response takes at most 4·rank VJPs and JVPs on itself, then
    2·(rank + probes) VJPs on itself (again for each group of observed responses that fits
    the memory) and as many JVPs on all observed ones.

    **Measured** on a 0.8M-parameter Llama of 2048 tokens, nine pairs of 6–7 tokens, six seeds:
    root mean square error of the norm 9% with rank 0 and 8 probes, 5% with rank 4, 2.9% with
    rank 8 (the default) at twice the time of rank 0, 1.5% with rank 16 at three times.

    **Arguments:**

    - `observed`, `updating`: responses. For one token pair give `response_token` of both.
    - `at`: where the derivatives are taken; the policy's own weights by default.
    - `scale`: diagonal of P by parameter name, an optimizer's for instance; identity by default.
    - `rank`, `probes`: dimension of W, and number of further random vectors (at least 2).
    - `memory_bytes`: bound on the directions, their images and tangents, beside the model and
      the activations of one pass.

    **Returns:** norms [observed, updating]. K turns a force into a change of the logits: with a
    scale that holds the learning rate, norms are in logits per unit of force.

    **Raises:** `ConfigError` on empty or unusable responses, too few probes, too little memory.
    """
    check_items(policy.causal, observed=observed, updating=updating)
    if rank < 0 or probes < 2:
        raise ConfigError(
            "rank, probes", (rank, probes), "the standard error needs two probes or more; rank ≥ 0"
        )
    kernel = TangentKernel.build(policy, at=at, scale=scale, memory_bytes=memory_bytes // 4)
    with torch.no_grad():
        classes = policy.logits(kernel.at, policy.batch(observed[:1])).shape[-1]
    bytes_each = (rank + probes) * classes * policy.dtype.itemsize
    groups, _ = (
        _groups(side, items, bytes_each, memory_bytes // 4)
        for side, items in (("observed", observed), ("updating", updating))
    )
    columns = []
    for number, item in enumerate(updating):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        columns.append(_of_updating(kernel, groups, item, rank, probes, generator))
    raw, centred = (np.stack(side, axis=-1) for side in zip(*columns, strict=True))
    if not (np.isfinite(raw).all() and np.isfinite(centred).all()):
        raise DynolabError("kernel sizes: some are not finite; check the weights and the scale")
    return KernelSizes(*_norms(raw), *_norms(centred))


def _norms(squares: Squares) -> tuple[Float[ndarray, "*pairs"], Float[ndarray, "*pairs"]]:
    """`‖K‖_F` and its standard error, `√variance / 2‖K‖`."""
    exact, rest, variance = squares
    norm = np.sqrt(exact + rest)
    error = np.divide(np.sqrt(variance), 2 * norm, out=np.zeros_like(norm), where=norm > 0)
    return norm, error


def _of_updating(
    kernel: TangentKernel,
    groups: list[list[Encoded]],
    item: Encoded,
    rank: int,
    probes: int,
    generator: torch.Generator,
) -> tuple[Squares, Squares]:
    """One column of the raw and the centred squares."""
    batch = kernel.policy.batch([item])
    logits, pull = kernel.pullback(batch)
    plans = [
        _directions(kernel, batch, pull, gauge, logits, rank, probes, generator)
        for gauge in (False, True)
    ]
    columns = []
    for group in groups:
        left = kernel.policy.batch(group)
        inside, outside = (_squares(kernel, left, pull, *plan) for plan in plans)
        # A shift lies outside range(C): it adds to the raw norm alone.
        columns.append((inside[0] + outside[0], inside[1]))
    raw, centred = (np.concatenate(side, axis=1) for side in zip(*columns, strict=True))
    return raw, centred


def _directions(
    kernel: TangentKernel,
    batch: TokenBatch,
    pull: Pullback,
    gauge: bool,
    logits: Float[Tensor, "positions classes"],
    rank: int,
    probes: int,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "rank positions classes"], Float[Tensor, "probes positions classes"]]:
    """W and random vectors orthogonal to it, in the gauge's subspace or in range(C)."""
    positions, classes = logits.shape
    dimension = positions * (1 if gauge else classes - 1)

    def draw(count: int) -> Float[Tensor, "count positions classes"]:
        normal = torch.randn(count, positions, classes, generator=generator)
        return _part(normal.to(logits), gauge)

    if dimension <= rank + probes:
        return _orthonormal(draw(dimension).double()).to(logits), draw(0)
    basis = draw(rank)
    for _ in range(ROUNDS):
        basis = _orthonormal(_part(kernel.product(batch, pull, basis), gauge))
    vectors, frame = draw(probes).flatten(1), basis.flatten(1)
    beside = vectors - (vectors @ frame.T) @ frame
    return basis, beside.reshape(probes, positions, classes)


def _part(
    vectors: Float[Tensor, "*vectors classes"], gauge: bool
) -> Float[Tensor, "*vectors classes"]:
    """`11ᵀ/V · v` for the gauge, otherwise `C v`."""
    shift = vectors.mean(-1, keepdim=True)
    return shift.expand_as(vectors) if gauge else vectors - shift


def _orthonormal(
    vectors: Float[Tensor, "vectors positions classes"],
) -> Float[Tensor, "rank positions classes"]:
    """An orthonormal basis of the vectors' span, without directions that are only rounding."""
    q, r = torch.linalg.qr(vectors.flatten(1).T)
    size = r.diagonal().abs()
    is_independent = size > 0
    if len(size):
        is_independent = size > 1e3 * torch.finfo(size.dtype).eps * size.amax(0)
    return q.T[is_independent].reshape(-1, *vectors.shape[1:])


def _squares(
    kernel: TangentKernel,
    left: TokenBatch,
    pull: Pullback,
    basis: Float[Tensor, "rank positions classes"],
    vectors: Float[Tensor, "probes positions classes"],
) -> tuple[Squares, Squares]:
    """Raw and centred squares of a group of observed items, in one subspace of the updating one.

    Here, raw and centred refer to the observed side: all of K w, or C K w.
    """
    images = kernel.product(left, pull, torch.cat([basis, vectors]))
    lengths = left.sequence_length.tolist()

    def of_responses(images: Float[Tensor, "directions positions V"]) -> list[Squares]:
        parts = images.split(lengths, dim=1)
        return [_of_images(part[: len(basis)], part[len(basis) :]) for part in parts]

    raw, centred = of_responses(images), of_responses(_part(images, gauge=False))
    return np.stack(raw, axis=1), np.stack(centred, axis=1)


def _of_images(
    exact: Float[Tensor, "rank positions classes"],
    random: Float[Tensor, "probes positions classes"],
) -> Squares:
    """`‖K W‖²`, the mean of ‖R v_i‖² and its variance `2‖RᵀR‖²_F/probes`."""
    inside = float(exact.double().square().sum())
    n = len(random)
    if n == 0:
        return np.array([inside, 0.0, 0.0])
    flat = random.flatten(1)
    gram = (flat @ flat.T).double()
    rest = float(gram.diagonal().mean())
    between = float((gram.square().sum() - gram.diagonal().square().sum()) / (n * (n - 1)))
    # ‖S‖_F ≤ tr S for S = RᵀR: one direction alone has the largest variance.
    return np.array([inside, rest, 2 * min(between, rest**2) / n])


def _groups(side: str, items: Sequence[Encoded], bytes_each: int, room: int) -> list[list[Encoded]]:
    """Groups of items whose vectors or images, `bytes_each` per position, fit into `room` bytes."""
    sizes = [item.response_length * bytes_each for item in items]
    for number, size in enumerate(sizes):
        if size > room:
            raise ConfigError(
                "memory_bytes",
                4 * room,
                f"{side}[{number}] with {items[number].response_length} positions takes "
                f"{4 * size} bytes; give as much, or a lower rank and fewer probes",
            )
    return list(in_groups(items, sizes, room))
