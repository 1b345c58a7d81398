"""What a model predicts at each token of a text: every figure from one pass over the logits."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 2**19
"""Logits processed at a time on a CPU: they and their intermediates fit its cache."""

SURE = 1e-12
"""Mass outside the argmax below which its square underflows float32: logarithms take over."""


@dataclass(frozen=True)
class TokenFacts:
    """One number for every token y that logits predict; π is their softmax, V its length.

    - `logp`: log π_y in nats.
    - `rank`: 1 + the number of tokens likelier than y.
    - `argmax`: the likeliest token, y*; `argmax_logp`: its log π in nats.
    - `outside_mass`: 1 − π(argmax), and `outside_logmass`, its logarithm.
    - `entropy`: `−Σ_v π_v log π_v` in nats.
    - `energy`: 1 − π_y.
    - `square`: ‖π‖₂².
    - `a_frobenius`: `‖A‖_F` of A = I − 1πᵀ, from `‖A‖²_F = V‖π‖² + V − 2`.
    - `force_size`: `‖π − e_y‖₂`.

    Each mass is a sum over its own tokens, never one minus a sum, so it keeps its digits as
    π → e_y.
    """

    logp: Float[Tensor, " tokens"]
    rank: Float[Tensor, " tokens"]
    argmax: Float[Tensor, " tokens"]
    argmax_logp: Float[Tensor, " tokens"]
    outside_mass: Float[Tensor, " tokens"]
    outside_logmass: Float[Tensor, " tokens"]
    entropy: Float[Tensor, " tokens"]
    energy: Float[Tensor, " tokens"]
    square: Float[Tensor, " tokens"]
    a_frobenius: Float[Tensor, " tokens"]
    force_size: Float[Tensor, " tokens"]

    def table(self) -> Float[Tensor, "tokens facts"]:
        """The facts as columns, in their order."""
        return torch.stack([getattr(self, field.name) for field in fields(self)], dim=1)

    @classmethod
    def of_table(cls, table: Float[Tensor, "tokens facts"]) -> TokenFacts:
        """The facts from their `table`."""
        return cls(*table.unbind(1))


@torch.no_grad()
def token_facts(
    logits: Float[Tensor, "tokens vocabulary"], token: Int[Tensor, " tokens"]
) -> TokenFacts:
    """Facts of the tokens that these logits predict; of tied argmax tokens one is chosen.

    **Arguments:** `logits`: float32 or float64; the facts have the same dtype.
    """
    rows = max(1, BLOCK // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = zip(logits.split(max(rows, 1)), token.split(max(rows, 1)), strict=True)
    return TokenFacts.of_table(torch.cat([_facts(*part).table() for part in parts]))


def _facts(z: Float[Tensor, "tokens vocabulary"], token: Int[Tensor, " tokens"]) -> TokenFacts:
    """Facts of a few tokens.

    With t the argmax, R = Σ_{v≠t} π_v and d = z − z_t: log π_t = log(1 − R),
    log π_y = d_y + log π_t and the entropy is −log π_t − Σ_{v≠t} π_v d_v, in which all summands
    are positive.
    """
    vocabulary = z.shape[1]
    highest, at = z.amax(dim=1, keepdim=True), token[:, None]
    # An impossible token adds nothing to the entropy: 0 · −inf counts as 0.
    below = (z - highest).clamp_(min=torch.finfo(z.dtype).min)
    # Memory of its own for every intermediate would take more time than the arithmetic.
    scratch = torch.empty_like(z)
    top, own_below = below.argmax(1, keepdim=True), below.gather(1, at)[:, 0]
    rank = 1 + torch.gt(below, own_below[:, None], out=scratch).sum(1)
    mass = torch.softmax(z, dim=1, out=scratch)
    peak = mass.gather(1, top)[:, 0]
    mass.scatter_(1, top, 0.0)
    probability = mass.gather(1, at)[:, 0]
    outside, rest = mass.sum(1), torch.linalg.vector_norm(mass, dim=1)
    log_outside = outside.log()
    sure = outside < SURE
    certain = bool(sure.any())
    if certain:
        spread, *exact = _of_certain((z - highest)[sure], top[sure])
        for values, value in zip((outside, rest, log_outside), exact, strict=True):
            values[sure] = value
    distance = mass.mul_(below).sum(1).neg_()
    if certain:
        distance[sure] = spread
    top_logp = torch.where(outside < 0.5, torch.log1p(-outside), peak.log())
    is_top = top[:, 0] == token
    energy = torch.where(is_top, outside, 1 - probability)
    square = peak**2 + rest**2
    others = torch.where(is_top, rest, (square - probability**2).sqrt())
    return TokenFacts(
        logp=own_below + top_logp,
        rank=rank,
        argmax=top[:, 0].to(z.dtype),
        argmax_logp=top_logp,
        outside_mass=outside,
        outside_logmass=log_outside,
        entropy=distance - top_logp,
        energy=energy,
        square=square,
        a_frobenius=(vocabulary * square + vocabulary - 2).sqrt(),
        force_size=torch.hypot(energy, others),
    )


def _of_certain(
    below: Float[Tensor, "tokens vocabulary"], top: Int[Tensor, "tokens 1"]
) -> tuple[
    Float[Tensor, " tokens"],
    Float[Tensor, " tokens"],
    Float[Tensor, " tokens"],
    Float[Tensor, " tokens"],
]:
    """`−Σ π d`, `R`, `‖π‖₂` and log R, each without the argmax, where R is nearly zero."""
    without = below.scatter(1, top, float("-inf"))
    log_outside = torch.logsumexp(without, dim=1)  # log π(argmax) is −R: negligible here
    share = torch.softmax(without, dim=1).nan_to_num()  # NaN if the vocabulary is one token
    outside = log_outside.exp()
    spread = -(share * below.clamp(min=torch.finfo(below.dtype).min)).sum(1) * outside
    return spread, outside, torch.linalg.vector_norm(share, dim=1) * outside, log_outside
