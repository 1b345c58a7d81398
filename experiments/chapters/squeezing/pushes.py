"""One push on one answer of a language model, and how far the provable picture explains it.

The step is a gradient step of size s that lowers `Σ_l log π(y_l | x, y_<l)`, with s such that the
answer loses a given number of nats per token to first order, the same in any model. Three pictures
predict its Δ log π over the whole vocabulary: the rule of one softmax, at every token by itself,
`z'_l = z_l − s ‖h_l‖² (e_y − π_l)`; the whole head with fixed features (the unconstrained-features
picture), `z'_o = z_o − s Σ_l (h_o·h_l)(e_y − π_l)`; and the first order in all weights. If the head
has a bias, products of features are larger by one. If the model transforms its head's output (a
scale, a cap), z is that output, `e_y − π` is backpropagated to it, and the transformation is
applied afterwards.

Tables, by `answer` (`rejected`, which is pushed, or `chosen`):

- `pushes`: one row for each pair. Of `tokens` positions, `label_fell` counts those where the
  answer's own token became less likely, `best_rose` those where the likeliest other token became
  likelier; `step` is the size of the gradient step.
- `explained`: `left`, the share of Σ(Δ log π)² over the whole vocabulary that a `picture` leaves
  unexplained, with the jackknife's 95% interval over `pairs`.
- `ranks`: mean Δ log π in nats of the tokens of ranks `first` to `last` before the push,
  `measured` and by picture. Ranks are among all tokens but the answer's own, 1 the likeliest; 0 is
  the answer's own token. `own_token` is NaN if the push was on another answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import at_head, head_module
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.one_step import norm_of
from dynolab.statistics import unexplained_share
from experiments.chapters.squeezing.softmax import force_of, likeliest_other

PICTURES = ("own_token", "last_layer", "first_order")


@dataclass(frozen=True)
class Pushed:
    """Δ log π of every token at every position of an answer, in nats: measured and predicted.

    `step` is the push's s. `own_token` is None if the push was on another answer.
    """

    pair_id: str
    answer: str
    step: float
    label: Int[Tensor, " tokens"]
    before: Float[Tensor, "tokens vocabulary"]
    measured: Float[Tensor, "tokens vocabulary"]
    own_token: Float[Tensor, "tokens vocabulary"] | None
    last_layer: Float[Tensor, "tokens vocabulary"]
    first_order: Float[Tensor, "tokens vocabulary"]


@dataclass(frozen=True)
class _Push:
    """A step against an answer, as a change of the weights and as seen at the head's output.

    `pull` is the gradient of `Σ log π(y_l)` with respect to the head's output: `e_y − π` if that
    output is the logits. `bias` is 1 if the head has a bias, which acts as a weight on a constant
    feature of one, else 0. `own_token` is Δ log π at every position by its own token's step alone.
    """

    change: Weights
    step: float
    label: Int[Tensor, " tokens"]
    features: Float[Tensor, "tokens features"]
    bias: float
    pull: Float[Tensor, "tokens vocabulary"]
    own_token: Float[Tensor, "tokens vocabulary"]

    def moved(
        self,
        features: Float[Tensor, "observed features"],
        output: Float[Tensor, "observed vocabulary"],
    ) -> Float[Tensor, "observed vocabulary"]:
        """The head's output at some features after the push."""
        products = features @ self.features.T + self.bias
        return output - self.step * products @ self.pull


def pushes(
    policy: PolicyFunction, pairs: Sequence[EncodedExample], fall: float
) -> Iterator[Pushed]:
    """Pushes every pair's rejected answer down, from the same weights each time.

    Yields the effect on the rejected answer itself, then on the chosen one.

    **Arguments:** `fall`: nats per token that the rejected answer loses to first order.
    """
    for pair in pairs:
        assert pair.rejected is not None, "a pair without a rejected answer has nothing to push"
        push = _push_down(policy, pair.rejected, fall)
        yield _observe(policy, push, pair.id, "rejected", pair.rejected)
        yield _observe(policy, push, pair.id, "chosen", pair.chosen)


def _push_down(policy: PolicyFunction, answer: Encoded, fall: float) -> _Push:
    """A gradient step against L = `Σ_l log π(y_l)`, of size `s = fall · T / ‖∇L‖²`."""
    batch = policy.batch([answer])
    leaves = {name: w.detach().requires_grad_() for name, w in policy.weights.items()}
    with torch.enable_grad():
        total = policy.logps(leaves, batch).sum()
        derivatives = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {name: g for name, g in zip(leaves, derivatives, strict=True) if g is not None}
    step = fall * len(batch.token) / float(norm_of(gradients.values()).square())
    change = {name: -step * gradient for name, gradient in gradients.items()}
    return _push_at_head(policy, batch, change, step)


def _push_at_head(policy: PolicyFunction, batch: TokenBatch, change: Weights, step: float) -> _Push:
    """Adds to a step its terms at the head."""
    seen: list[Tensor] = []

    def cut(features: Tensor, output: Tensor) -> Tensor:
        seen.extend([features.detach(), output.detach().requires_grad_()])
        return seen[1]

    with torch.enable_grad(), at_head(policy, cut):
        logits = policy.logits(policy.weights, batch)
    features, output = seen
    logp = logits.detach().log_softmax(-1)
    (pull,) = torch.autograd.grad(logits, output, force_of(logp, batch.token))
    bias = float(getattr(head_module(policy.causal), "bias", None) is not None)
    sizes = features.square().sum(-1, keepdim=True) + bias
    with torch.no_grad(), at_head(policy, lambda _, output: output - step * sizes * pull):
        own_token = policy.logits(policy.weights, batch).log_softmax(-1) - logp
    return _Push(change, step, batch.token, features, bias, pull, own_token)


@torch.no_grad()
def _observe(
    policy: PolicyFunction, push: _Push, pair_id: str, answer: str, encoded: Encoded
) -> Pushed:
    batch = policy.batch([encoded])
    start = policy.weights
    after = {**start, **{name: start[name] + d for name, d in push.change.items()}}
    before = policy.logits(start, batch).log_softmax(-1)
    with at_head(policy, push.moved):
        last_layer = policy.logits(start, batch).log_softmax(-1) - before
    return Pushed(
        pair_id=pair_id,
        answer=answer,
        step=push.step,
        label=batch.token,
        before=before,
        measured=policy.logits(after, batch).log_softmax(-1) - before,
        own_token=push.own_token if answer == "rejected" else None,
        last_layer=last_layer,
        first_order=policy.change_along(start, [push.change], batch, view=View.vocabulary())[0],
    )


_CHANGES = ("measured", *PICTURES)


class Tally:
    """Sums over pushes; their changes, a whole vocabulary per token, are not kept."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._squares: dict[str, list[dict[str, float]]] = {}
        self._ranks: dict[str, tuple[int, dict[str, Tensor]]] = {}

    def add(self, pushed: Pushed) -> None:
        """Adds one answer."""
        best = likeliest_other(pushed.before, pushed.label)
        label_change, other = (
            pushed.measured.gather(1, index[:, None]) for index in (pushed.label, best)
        )
        self.rows.append(
            {
                "pair_id": pushed.pair_id,
                "answer": pushed.answer,
                "step": pushed.step,
                "tokens": len(pushed.label),
                "label_fell": int((label_change < 0).sum()),
                "best_rose": int((other > 0).sum()),
            }
        )
        squares = {"measured": float(pushed.measured.norm())}
        for picture in PICTURES:
            predicted = getattr(pushed, picture)
            if predicted is not None:
                squares[picture] = float((pushed.measured - predicted).norm())
        self._squares.setdefault(pushed.answer, []).append(squares)
        sums = {name: values.sum(0) for name, values in _by_rank(pushed).items()}
        tokens, before = self._ranks.get(pushed.answer, (0, {}))
        added = {name: values + before.get(name, 0) for name, values in sums.items()}
        self._ranks[pushed.answer] = tokens + len(pushed.label), added

    def left_over(self) -> Iterator[dict[str, Any]]:
        """The share that each picture leaves unexplained, on pushed and on chosen answers."""
        for answer, squares in self._squares.items():
            size = np.array([sizes["measured"] for sizes in squares])
            for picture in (name for name in PICTURES if name in squares[0]):
                # The share only needs sums of squares; each pair has one row, with their roots.
                errors = np.array([sizes[picture] for sizes in squares])
                share = unexplained_share(size, size - errors, np.arange(len(squares)))
                yield {
                    "answer": answer,
                    "picture": picture,
                    "left": share.mean,
                    "low": share.low,
                    "high": share.high,
                    "pairs": share.n,
                }

    def rank_changes(self) -> Iterator[dict[str, Any]]:
        """Means of the answer's own token, and of ranks 1, 2–3, 4–7, 8–15 … of all others."""
        for answer, (tokens, sums) in self._ranks.items():
            width = len(sums["measured"])
            edges = [0, *(2**n for n in range(width.bit_length()) if 2**n < width), width]
            for first, end in pairwise(edges):
                means = {name: float(v[first:end].mean()) / tokens for name, v in sums.items()}
                yield {"answer": answer, "first": first, "last": end - 1, **means}


def _by_rank(pushed: Pushed) -> Mapping[str, Float[Tensor, "tokens vocabulary"]]:
    """Changes with the answer's own token first and the others by falling probability."""
    order = pushed.before.scatter(1, pushed.label[:, None], torch.inf).argsort(1, descending=True)
    values = {name: getattr(pushed, name) for name in _CHANGES}
    return {
        name: torch.full_like(pushed.measured, torch.nan)
        if value is None
        else value.gather(1, order)
        for name, value in values.items()
    }
