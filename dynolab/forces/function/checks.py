"""Rejects what the force engine cannot use: models, batches, dtypes, and wrong derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.views import twice_differentiable
from dynolab.likelihood.checked import note_check
from dynolab.likelihood.token_logps import causal_model

if TYPE_CHECKING:
    from dynolab.forces.function.policy import PolicyFunction
    from dynolab.training.step_record import StepRecord


def check_model(model: nn.Module, *, derivatives: bool = True) -> None:
    """Rejects models whose parameters are not the numbers that they compute with.

    **Arguments:** `derivatives`: their gradients must be derivatives, too.

    **Raises:** `ConfigError` for weights that are offloaded, on several devices or not finite, and
    for adapters that are merged or switched off; where derivatives are wanted, for ZeRO-3
    placeholders, for quantised weights, which have none in forward mode, and for adapters of a kind
    whose gradient autograd does not give.
    """
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0 and derivatives:
            raise ConfigError(
                name,
                "empty, a placeholder of ZeRO-3",
                "analyse the gathered model: the run's `model/` folder, or the engine's "
                "`master_weights()` in a model of one process",
            )
        if not parameter.is_floating_point() and derivatives:
            raise ConfigError(name, str(parameter.dtype), "dequantise the weights first")
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise ConfigError("model", devices, "put all weights on one device, none of them offloaded")
    check_finite("weights", {name: p.detach() for name, p in model.named_parameters()})
    for name, module in model.named_modules():
        # peft's layers, recognised by their attributes, so that peft need not be installed.
        if getattr(module, "merged_adapters", None):
            raise ConfigError(
                name,
                f"adapters {module.merged_adapters} are merged",
                "call unmerge_adapter(), or merge_and_unload() to move the merged weights",
            )
        if getattr(module, "_disable_adapters", False):
            raise ConfigError(name, "adapters are switched off", "switch them on, or unload them")
        if derivatives and getattr(module, "lora_variant", None):
            kinds = sorted({type(variant).__name__ for variant in module.lora_variant.values()})
            raise ConfigError(
                name,
                kinds,
                "only plain LoRA has forces: DoRA's gradient holds its norm constant, so it is "
                "no derivative; call merge_and_unload() to move the merged weights",
            )


def check_finite(label: str, tensors: Mapping[str, Tensor]) -> None:
    """Rejects tensors with nan or inf."""
    # Sums are cheap and any nan or inf shows in them; they may also overflow on finite entries.
    # They are read all at once: each reading waits for a GPU.
    sums = [tensor.sum().double() for tensor in tensors.values()]
    if not sums or bool(torch.stack(sums).isfinite().all()):
        return
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigError(
                f"{label}[{name}]",
                "nan or inf",
                "training diverged; give a checkpoint from before divergence",
            )


def check_response(label: str, sequence: Encoded, causal: nn.Module) -> None:
    """Rejects a sequence that the model cannot score; the error names it `label`."""
    context = getattr(causal.config, "max_position_embeddings", None)
    vocabulary = causal.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    if sequence.response_length < 1:
        raise ConfigError(label, sequence.ids, "has no response tokens; give a response")
    if sequence.prompt_length < 1:
        raise ConfigError(
            label, sequence.ids, "has no prompt token to predict the first one from; give a prompt"
        )
    if context is not None and len(sequence.ids) > context:
        raise ConfigError(
            label, f"{len(sequence.ids)} tokens", f"the context holds {context}; shorten the prompt"
        )
    if not 0 <= min(sequence.ids) <= max(sequence.ids) < vocabulary:
        raise ConfigError(
            label,
            max(sequence.ids),
            f"the model's vocabulary has {vocabulary} tokens; encode with the model's tokenizer",
        )


def check_items(causal: nn.Module, **sides: Sequence[Encoded]) -> None:
    """Rejects empty sides and responses that the model cannot score."""
    for side, items in sides.items():
        if not items:
            raise ConfigError(side, [], "give at least one response")
        for number, item in enumerate(items):
            check_response(f"{side}[{number}]", item, causal)


def check_batch(batch: TokenBatch, causal: nn.Module) -> None:
    """Rejects a batch with a sequence that the model cannot score."""
    first = {row: len(ids) for row, ids in enumerate(batch.input_ids)}
    for row, position in zip(batch.sequence.tolist(), batch.position.tolist(), strict=True):
        first[row] = min(first[row], position + 1)
    real = batch.attention_mask.bool()
    for row, (ids, mask) in enumerate(zip(batch.input_ids, real, strict=True)):
        prompt = int(mask[: first[row]].sum())
        sequence = Encoded(tuple(ids[mask].tolist()), prompt)
        check_response(f"batch sequence {row}", sequence, causal)


def check_record(record: StepRecord, causal: nn.Module) -> None:
    """Rejects a record with responses that the model cannot score, or with nan or inf."""
    for example in record.examples:
        for name, sequence in example.named().items():
            check_response(f"record example {example.id}.{name}", sequence, causal)
    check_finite("record.before", record.before)
    check_finite("record.after", record.after)
    for name, state in record.state.items():
        check_finite(f"record.state[{name}]", state)


def check_arithmetic(dtype: torch.dtype, why: str) -> None:
    """Rejects 16-bit arithmetic, whose rounding hides the result."""
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError("policy.dtype", str(dtype), f"{why}; use float32 or float64")


Mode = Literal["forward", "backward", "second"]
"""Derivatives of log π by the weights; `second`: forward mode applied twice."""

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


@dataclass(frozen=True)
class Derivatives:
    """Relative errors of the modes of differentiation, infinite where one cannot be run.

    `reasons` says why.
    """

    model: str
    tolerance: float
    errors: dict[Mode, float]
    reasons: dict[Mode, str] = field(default_factory=dict)

    def agrees(self, mode: Mode) -> bool:
        """Whether the mode gives the derivative of the model's own log-probabilities."""
        return self.errors[mode] <= self.tolerance

    def require(self, mode: Mode) -> None:
        """Raises `ConfigError` if the mode does not agree."""
        if self.agrees(mode):
            return
        difference = self.reasons.get(
            mode, f"differs from the central difference by {self.errors[mode]:.2g} of it"
        )
        raise ConfigError("model", self.model, f"{mode} derivative: {difference}; {_REMEDY[mode]}")


_measured: WeakKeyDictionary[nn.Module, dict[torch.dtype, Derivatives]] = WeakKeyDictionary()


def derivatives_of(policy: PolicyFunction) -> Derivatives:
    """A policy's derivatives, measured on first use.

    16-bit differences are too coarse to compare with, so a 16-bit policy is measured in float32.
    """
    by_dtype = _measured.setdefault(causal_model(policy.model), {})
    if policy.dtype not in by_dtype:
        by_dtype[policy.dtype] = measure_derivatives(policy)
    measured = by_dtype[policy.dtype]
    note_check(
        f"{measured.model} derivatives {str(policy.dtype).removeprefix('torch.')}",
        {"tolerance": measured.tolerance, **{str(mode): e for mode, e in measured.errors.items()}},
    )
    return measured


@torch.no_grad()
def measure_derivatives(policy: PolicyFunction) -> Derivatives:
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

    def logps(weights: dict[str, Tensor]) -> Float[Tensor, " tokens"]:
        logits = policy.logits(weights, batch)
        return logits.log_softmax(-1).gather(-1, batch.token[:, None]).squeeze(-1)

    def moved(s: float) -> dict[str, Tensor]:
        return {name: w + s * direction[name] for name, w in at.items()}

    h = torch.finfo(dtype).eps ** (1 / 3)
    forth, back = (logps(moved(s * h)) for s in (1, -1))
    wide = torch.finfo(dtype).eps ** (1 / 4)
    ahead, behind = (logps(moved(s * wide)) for s in (1, -1))
    slope, bend = (forth - back) / (2 * h), (ahead - 2 * logps(at) + behind) / wide**2
    modes: dict[Mode, tuple[Tensor, Callable[[], Tensor]]] = {
        "forward": (slope, lambda: jvp(logps, (at,), (direction,))[1]),
        "backward": (slope, lambda: _by_gradients(logps, at, direction)),
        "second": (bend, lambda: _twice(logps, at, direction)),
    }
    errors: dict[Mode, float] = {}
    reasons: dict[Mode, str] = {}
    for mode, (truth, derivative) in modes.items():
        try:
            apart = derivative().to(truth.device) - truth
            difference = apart.abs().median() / truth.square().mean().sqrt()
            errors[mode] = float(difference) if difference.isfinite() else math.inf
        # Autograd may raise anything on a family's code.
        except Exception as error:
            first_line = str(error).partition("\n")[0]
            errors[mode] = math.inf
            reasons[mode] = f"{type(error).__name__}: {first_line}"
    return Derivatives(type(causal).__name__, TOLERANCE[dtype], errors, reasons)


@torch.enable_grad()  # torch's rules for activations can be differentiated again only then
def _twice(
    function: Callable[[dict[str, Tensor]], Tensor],
    at: dict[str, Tensor],
    direction: dict[str, Tensor],
) -> Tensor:
    """`d · ∂²f_m · d` of every output m."""

    def along(weights: dict[str, Tensor]) -> Tensor:
        with twice_differentiable():
            moved: Tensor = jvp(function, (weights,), (direction,))[1]
        return moved

    bent: Tensor = jvp(along, (at,), (direction,))[1]
    return bent


def _by_gradients(
    function: Callable[[dict[str, Tensor]], Tensor],
    at: dict[str, Tensor],
    direction: dict[str, Tensor],
) -> Tensor:
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
