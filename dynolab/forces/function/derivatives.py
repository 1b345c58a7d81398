"""Measures whether a model's derivatives are those of its log-probabilities, and rejects others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.views import twice_differentiable
from dynolab.forces.function.weights import NamedTensors, Weights
from dynolab.likelihood.checked import ModelCheck, try_ways
from dynolab.likelihood.token_logps import causal_model


class ScoredTokens(Protocol):
    """What a measurement needs of a policy, which itself asks whether its derivatives agree."""

    model: nn.Module
    dtype: torch.dtype
    device: torch.device
    weights: NamedTensors
    frozen: set[str]

    def logits(self, weights: Weights, batch: TokenBatch) -> Float[Tensor, "tokens vocabulary"]:
        """Logits that predict each response token at the given weights."""


Mode = Literal["forward", "backward", "second"]
"""Derivatives of log π by the weights; `second`: forward mode applied twice."""

Function = Callable[[NamedTensors], Float[Tensor, " outputs"]]
"""Of the weights, such as log π of some tokens."""

TOLERANCE = {torch.float64: 1e-4, torch.float32: 0.05}
"""Relative error of a derivative against the central difference, which is noisy itself."""

_REMEDY: dict[Mode, str] = {
    "forward": (
        "force maps need no forward-mode derivative; predictions of whole steps do: analyse a "
        "model of a family that has one (Llama, Qwen, Mistral, GPT-NeoX ...)"
    ),
    "backward": (
        "its gradients are not those of its forward (straight-through rounding, a detached part), "
        "so no force follows from them; load it without quantisation or custom kernels"
    ),
    "second": (
        "how far first order carries cannot be predicted for it; compare measured and predicted "
        "changes instead"
    ),
}


DIVERGED = -1e3
"""log π of a token, in nats: no model says this of a random token unless its training diverged."""


@dataclass(frozen=True)
class Derivatives(ModelCheck[Mode]):
    """Relative errors of the modes of differentiation against differences of log π.

    `lowest`: log π of the least likely token that they were measured on, in nats.
    """

    lowest: float = 0.0

    def require(self, mode: Mode) -> None:
        """Raises `ConfigError` if the mode does not agree."""
        if self.agrees(mode):
            return
        difference = self.reasons.get(
            mode, f"differs from the central difference by {self.errors[mode]:.2g} of it"
        )
        remedy = _REMEDY[mode]
        if not self.lowest > DIVERGED:
            remedy = (
                f"its log-probabilities reach {self.lowest:.3g} nats a token, so its training has "
                "diverged; lower the learning rate, or clip_norm"
            )
        raise ConfigError("model", self.model, f"{mode} derivative: {difference}; {remedy}")


_measured: WeakKeyDictionary[nn.Module, dict[torch.dtype, Derivatives]] = WeakKeyDictionary()


def derivatives_of(policy: ScoredTokens) -> Derivatives:
    """A policy's derivatives, measured on first use.

    16-bit differences are too coarse to compare with, so a 16-bit policy is measured in float32.
    """
    by_dtype = _measured.setdefault(causal_model(policy.model), {})
    if policy.dtype not in by_dtype:
        by_dtype[policy.dtype] = measure_derivatives(policy)
    measured = by_dtype[policy.dtype]
    measured.note(f"derivatives {str(policy.dtype).removeprefix('torch.')}")
    return measured


@torch.no_grad()
def measure_derivatives(policy: ScoredTokens) -> Derivatives:
    """∂ log π · d of a few random tokens by each mode against `[log π(θ+hd) − log π(θ−hd)]/2h`.

    The second derivative is compared with `[log π(θ+hd) − 2 log π(θ) + log π(θ−hd)]/h²`. d is
    random. The error is the median over tokens, in units of the differences' root mean square: a
    step can route a token to other experts, which is no error of the derivative.
    """
    dtype = policy.dtype if policy.dtype in TOLERANCE else torch.float32
    at = {name: w.to(dtype) for name, w in policy.weights.items() if name not in policy.frozen}
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(w.shape, generator=generator, dtype=dtype).to(w.device)
        * max(float(w.double().square().mean().sqrt()), 1e-2)
        for name, w in at.items()
    }
    causal = causal_model(policy.model)
    batch = collate([_sample(causal, generator)], 0).to(policy.device)

    def logps(weights: NamedTensors) -> Float[Tensor, " tokens"]:
        logits = policy.logits(weights, batch)
        return logits.log_softmax(-1).gather(-1, batch.token[:, None]).squeeze(-1)

    def moved(s: float) -> NamedTensors:
        return {name: w + s * direction[name] for name, w in at.items()}

    h = torch.finfo(dtype).eps ** (1 / 3)
    lowest = float(logps(at).min())
    slope = (logps(moved(h)) - logps(moved(-h))) / (2 * h)
    wide = torch.finfo(dtype).eps ** (1 / 4)
    bend = (logps(moved(wide)) - 2 * logps(at) + logps(moved(-wide))) / wide**2

    def error(
        truth: Float[Tensor, " tokens"], derivative: Callable[[], Float[Tensor, " tokens"]]
    ) -> float:
        apart = derivative().to(truth.device) - truth
        relative = float(apart.abs().median() / truth.square().mean().sqrt())
        return relative if math.isfinite(relative) else math.inf

    ways: dict[Mode, Callable[[], float]] = {
        "forward": partial(error, slope, partial(_forward, logps, at, direction)),
        "backward": partial(error, slope, partial(_by_gradients, logps, at, direction)),
        "second": partial(error, bend, partial(_twice, logps, at, direction)),
    }
    errors, reasons = try_ways(ways)
    return Derivatives(type(causal).__name__, TOLERANCE[dtype], errors, reasons, lowest)


def _forward(
    function: Function,
    at: NamedTensors,
    direction: NamedTensors,
) -> Float[Tensor, " outputs"]:
    """`∂f_m · d` of every output m."""
    moved: Float[Tensor, " outputs"] = jvp(function, (at,), (direction,))[1]
    return moved


@torch.enable_grad()  # torch's rules for activations can be differentiated again only then
def _twice(
    function: Function,
    at: NamedTensors,
    direction: NamedTensors,
) -> Float[Tensor, " outputs"]:
    """`d · ∂²f_m · d` of every output m."""

    def along(weights: NamedTensors) -> Float[Tensor, " outputs"]:
        with twice_differentiable():
            return _forward(function, weights, direction)

    return _forward(along, at, direction)


def _by_gradients(
    function: Function,
    at: NamedTensors,
    direction: NamedTensors,
) -> Float[Tensor, " outputs"]:
    """`⟨∇f_m, d⟩` of every output m."""
    leaves = {name: w.detach().requires_grad_() for name, w in at.items()}
    with torch.enable_grad():
        values = function(leaves).unbind()
    products = []
    for value in values:
        gradient = torch.autograd.grad(
            value, list(leaves.values()), retain_graph=True, materialize_grads=True
        )
        pairs = zip(gradient, direction.values(), strict=True)
        products.append(torch.stack([(g * d).sum() for g, d in pairs]).sum())
        del gradient, pairs  # frees the memory before the next value's gradient is made
    return torch.stack(products)


def _sample(causal: nn.Module, generator: torch.Generator) -> Encoded:
    config = causal.config.get_text_config()  # type: ignore[union-attr, operator]
    context = getattr(config, "max_position_embeddings", None) or 8
    length = min(8, context)
    ids = torch.randint(config.vocab_size - 1, (length,), generator=generator)
    # An embedding's padding row has no gradient, and a norm of its zeros no smooth derivative.
    padding = getattr(causal.get_input_embeddings(), "padding_idx", None)  # type: ignore[operator]
    if padding is not None:
        ids += ids >= padding
    return Encoded(tuple(ids.tolist()), max(1, length - 5))
