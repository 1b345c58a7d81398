"""The empirical tangent kernel of the logits as an operator, and in full where it is small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vjp, vmap

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_arithmetic, check_items
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.function.weights import NamedTensors, Weights

_MOST_DIRECTIONS = 32

Stacked = dict[str, Float[Tensor, "directions ..."]]
"""Changes of the weights by parameter name: several directions along the first axis."""

Pullback = Callable[[Float[Tensor, "directions positions classes"]], Stacked]


@dataclass(frozen=True)
class TangentKernel:
    """`K = J_o P J_uᵀ`, J = ∂ logits/∂θ (Jacot et al., arXiv 1806.07572; per step and token in
    Ren & Sutherland, arXiv 2407.10490, prop. 1).

    It is the kernel of the logits, not of log π, as `A K G` requires. P is diagonal, so
    `K_ouᵀ = K_uo`: the transposed product is `product` with the sides exchanged.

    - `at`: where both Jacobians are taken.
    - `moving`: the parameters they run over.
    - `scale`: the diagonal of P by parameter name; None for P = I.
    - `memory_bytes`: bound on the tangents and logits of directions that share a pass.
    """

    policy: PolicyFunction
    at: NamedTensors
    moving: frozenset[str]
    scale: NamedTensors | None
    memory_bytes: int

    @classmethod
    def build(
        cls,
        policy: PolicyFunction,
        *,
        at: Weights | None = None,
        scale: Weights | None = None,
        memory_bytes: int = 2**28,
    ) -> TangentKernel:
        """The kernel at `at`, the policy's own weights by default.

        The scale's names are the parameters that move; without a scale, those that require a
        gradient move (adapters alone under LoRA).
        """
        check_arithmetic(policy.dtype, "derivatives of 8 significant bits are mostly noise")
        place = {**policy.weights, **({} if at is None else policy.cast(at))}
        metric = None if scale is None else policy.cast(scale)
        moving = frozenset(subspace(policy) if metric is None else metric)
        if not moving:
            raise ConfigError("scale", {}, "name the parameters that move, at least one")
        return cls(policy, place, moving, metric, memory_bytes)

    def pullback(self, batch: TokenBatch) -> tuple[Float[Tensor, "positions classes"], Pullback]:
        """Logits of a batch, and `v ↦ P Jᵀ v` for any number of cotangents v at once (VJP)."""
        fixed = {name: w for name, w in self.at.items() if name not in self.moving}
        primal = {name: self.at[name] for name in sorted(self.moving)}
        logits, back = vjp(  # type: ignore[misc]
            lambda w: self.policy.logits({**fixed, **w}, batch), primal
        )

        def pull(cotangents: Float[Tensor, "directions positions classes"]) -> Stacked:
            (gradients,) = vmap(back)(cotangents)
            if self.scale is None:
                return gradients
            return {name: self.scale[name] * g for name, g in gradients.items()}

        return logits.detach(), pull

    @torch.no_grad()
    def push(
        self, batch: TokenBatch, tangents: Stacked
    ) -> Float[Tensor, "directions positions classes"]:
        """`J d` for any number of directions d at once (JVP)."""
        along = self.policy.pushforward(
            lambda w: self.policy.logits(w, batch), self.at, self.moving
        )
        moving_tangents = {name: tangents[name] for name in self.moving}
        return vmap(along, out_dims=(None, 0))(moving_tangents)[1]  # type: ignore[arg-type]

    def product(
        self,
        left: TokenBatch,
        pull: Pullback,
        vectors: Float[Tensor, "directions positions classes"],
    ) -> Float[Tensor, "directions left_positions classes"]:
        """`K v` of several v, each by one VJP through `pull` and one JVP on the left side."""
        shape = len(left.token), vectors.shape[-1]
        room = self.together(*shape)
        images = [self.push(left, pull(part)) for part in vectors.split(room) if len(part)]
        empty = vectors.new_empty(0, *shape)
        return torch.cat([empty, *images])

    def together(self, positions: int, classes: int) -> int:
        """Directions that share a pass: as many as the memory holds."""
        size = torch.finfo(self.policy.dtype).bits // 8
        moving = sum(self.at[name].numel() for name in self.moving)
        direction_bytes = size * (2 * moving + 4 * positions * classes)
        return max(1, min(_MOST_DIRECTIONS, self.memory_bytes // direction_bytes))


def kernel_blocks(
    policy: PolicyFunction,
    observed: Encoded,
    updating: Encoded,
    *,
    at: Weights | None = None,
    scale: Weights | None = None,
    memory_bytes: int = 2**30,
) -> Float[Tensor, "observed updating classes classes"]:
    """All blocks `K_{m,l} = J_{z_m}(χ_o) P J_{z_l}(χ_u)ᵀ` of a pair, exact to rounding.

    `−η A_m K_{m,l} G_l` is then the push of token l on all of position m's log-probabilities.
    For small vocabularies: it takes L·V VJPs on the updating response and as many
    JVPs on the observed one, and M·L·V² numbers.

    **Arguments:**

    - `at`: where the derivatives are taken; the policy's own weights by default.
    - `scale`: diagonal of P by parameter name, an optimizer's for instance; identity by default.

    **Returns:** `[m, l, i, j]`: rise of logit i at observed position m per unit of pull on logit j
    at updating position l.

    **Raises:** `ConfigError` where the blocks need more than `memory_bytes`.
    """
    check_items(policy.causal, observed=[observed], updating=[updating])
    kernel = TangentKernel.build(policy, at=at, scale=scale, memory_bytes=memory_bytes // 4)
    logits, pull = kernel.pullback(policy.batch([updating]))
    M, (L, V) = observed.response_length, logits.shape
    # Directions and their images are in memory together.
    needed = logits.element_size() * (M * L * V**2 + (L * V) ** 2)
    if needed > memory_bytes:
        raise ConfigError(
            "memory_bytes",
            memory_bytes,
            f"the blocks of {M} × {L} positions and {V} classes take {needed} bytes; give "
            "as much, or use kernel_sizes for their norms alone",
        )
    basis = torch.eye(L * V, dtype=logits.dtype, device=logits.device).reshape(L * V, L, V)
    columns = kernel.product(policy.batch([observed]), pull, basis)
    return columns.reshape(L, V, M, V).permute(2, 0, 3, 1)


def response_token(sequence: Encoded, index: int) -> Encoded:
    """One response token as a response of its own; all tokens before it are the prompt.

    Later tokens do not affect earlier ones, so the kernel of two such responses is the block of
    the token pair.
    """
    end = range(sequence.prompt_length, len(sequence.ids))[index]
    return Encoded(sequence.ids[: end + 1], end)
