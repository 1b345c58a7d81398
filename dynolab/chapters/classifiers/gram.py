"""Inner products of classifiers' gradients, layer by layer, without the gradients themselves.

`forces.map` and `forces.kernel` batch the many positions of one item; this module batches many
images of one position each: all 64 × 64 kernels of digits under LeNet take 0.06 s, against 2.3 s
by a product for every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vjp, vmap

from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_finite
from dynolab.forces.function.logit_function import call_at
from dynolab.forces.map.factors import differing

TOGETHER = 64
"""Images per side whose factors are held at once."""

SLICE = 2**22
"""Gradient entries formed at once, over both sides."""


@dataclass(frozen=True)
class Layer:
    """A matrix's gradient for every image n and cotangent r: `Σ_s signal[n,r,:,s] input[n,:,s]ᵀ`.

    Positions s are the places of a convolution or the tokens of a transformer; in a layer with a
    bias, the inputs end with a one.
    """

    input: Float[Tensor, "images d_in positions"]
    signal: Float[Tensor, "images cotangents d_out positions"]


@dataclass
class ImageFactors:
    """`J_nᵀ c_nr` of some images' cotangents by parameter: as factors, or in full (`whole`)."""

    shape: tuple[int, int]
    layers: dict[str, Layer] = field(default_factory=dict)
    whole: dict[str, Float[Tensor, "images cotangents size"]] = field(default_factory=dict)

    def add(self, call: _Call, signal: Float[Tensor, "images cotangents ..."]) -> None:
        """Adds a call's gradients; repeated calls of a module add up."""
        if isinstance(call.module, nn.LayerNorm | nn.GroupNorm):
            for name, gradient in _norm(call.weight, call.module, call.input, signal).items():
                self.whole[name] = self.whole[name] + gradient if name in self.whole else gradient
            return
        layer, old = _layer(call.module, call.input, signal), self.layers.get(call.weight)
        if old is not None:
            layer = Layer(
                torch.cat([old.input, layer.input], -1), torch.cat([old.signal, layer.signal], -1)
            )
        self.layers[call.weight] = layer


def gradient_gram(
    model: nn.Module,
    observed: Float[Tensor, "observed ..."],
    observed_cotangents: Float[Tensor, "observed left classes"],
    updating: Float[Tensor, "updating ..."],
    updating_cotangents: Float[Tensor, "updating right classes"],
    *,
    generic: frozenset[str] | None = None,
) -> Float[Tensor, "observed updating left right"]:
    """`⟨J_oᵀ c_o, J_uᵀ c_u⟩` of all images' cotangents, J = ∂ logits/∂θ at the model's weights.

    With unit vectors as cotangents it is the tangent kernel; with a force on the updating side and
    `e_y − π` on the observed one, it is minus the push of u on o's log π_y.

    A linear layer's gradients have the inner product `(δ_o·δ_u)(a_o·a_u)`, a the input and δ the
    output's gradient; a convolution is a linear layer on the patches of its image, whose
    gradients, sums over places, are formed and multiplied a slice at a time. Other kinds of layer,
    and layers that do not act as their kind does, use full gradients.

    **Arguments:** `generic`: parameters that need full gradients; by default `without_layer`
    finds them.

    **Raises:** `ConfigError` for weights that are not finite, or logits that are not images ×
    classes.
    """
    check_finite("weights", {name: p.detach() for name, p in model.named_parameters()})
    if generic is None:
        generic = without_layer(model, updating[:2])
    left, right = observed_cotangents.shape[1], updating_cotangents.shape[1]
    out = observed.new_empty(len(observed), left, len(updating), right)
    for rows in _blocks(len(observed)):
        ours = image_factors(model, observed[rows], observed_cotangents[rows], generic)
        for columns in _blocks(len(updating)):
            theirs = image_factors(model, updating[columns], updating_cotangents[columns], generic)
            out[rows, :, columns] = contract_images(ours, theirs)
    return out.transpose(1, 2)


def image_factors(
    model: nn.Module,
    images: Float[Tensor, "images ..."],
    cotangents: Float[Tensor, "images cotangents classes"],
    generic: frozenset[str],
) -> ImageFactors:
    """Gradients of each image's `c_r · logits` as factors, of `generic` parameters in full."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    with torch.enable_grad(), _recorded(model, generic) as calls:
        logits = call_at(model, weights, images)
    if logits.shape != (len(images), cotangents.shape[-1]):
        raise ConfigError(
            "model",
            f"logits of shape {tuple(logits.shape)} for {len(images)} images",
            f"give a classifier of {cotangents.shape[-1]} classes",
        )
    factors = ImageFactors((len(images), cotangents.shape[1]))
    if calls:
        signals = torch.autograd.grad(
            logits,
            [call.output for call in calls],
            cotangents.transpose(0, 1),
            is_grads_batched=True,
        )
        for call, signal in zip(calls, signals, strict=True):
            factors.add(call, signal.transpose(0, 1))
    if generic:
        factors.whole |= _whole(model, weights, generic, images, cotangents)
    return factors


@torch.no_grad()
def contract_images(
    observed: ImageFactors, updating: ImageFactors
) -> Float[Tensor, "observed left updating right"]:
    """`Σ_p ⟨∇_p, ∇_p⟩` of all pairs of cotangents of all pairs of images."""
    (n, left), (m, right) = observed.shape, updating.shape
    tensors = [*(layer.signal for layer in observed.layers.values()), *observed.whole.values()]
    out = tensors[0].new_zeros(n * left, m * right)
    for name, ours in observed.layers.items():
        theirs = updating.layers[name]
        if ours.input.shape[-1] == theirs.input.shape[-1] == 1:
            signals = ours.signal.flatten(0, 1)[..., 0] @ theirs.signal.flatten(0, 1)[..., 0].T
            inputs = ours.input[..., 0] @ theirs.input[..., 0].T
            out.view(n, left, m, right).addcmul_(
                signals.view(n, left, m, right), inputs[:, None, :, None]
            )
        else:
            for part in _slices(ours, theirs):
                out.addmm_(_formed(ours, part), _formed(theirs, part).T)
    for name, whole in observed.whole.items():
        out.addmm_(whole.flatten(0, 1), updating.whole[name].flatten(0, 1).T)
    return out.view(n, left, m, right)


def _formed(layer: Layer, outputs: slice) -> Float[Tensor, "rows entries"]:
    """Gradients of some of the outputs, one row for each image and cotangent."""
    signal = layer.signal[:, :, outputs]
    product = signal.flatten(1, 2) @ layer.input.transpose(1, 2)
    return product.view(signal.shape[0] * signal.shape[1], -1)


def _slices(ours: Layer, theirs: Layer) -> Iterator[slice]:
    rows = sum(side.signal.shape[0] * side.signal.shape[1] for side in (ours, theirs))
    width = max(1, SLICE // (rows * ours.input.shape[1]))
    outputs = ours.signal.shape[2]
    return (slice(low, min(low + width, outputs)) for low in range(0, outputs, width))


@dataclass(frozen=True)
class _Call:
    """One call of a module; `weight` is its weight's name."""

    weight: str
    module: nn.Module
    input: Tensor
    output: Tensor


@contextmanager
def _recorded(model: nn.Module, generic: frozenset[str]) -> Iterator[list[_Call]]:
    """Records every call of modules of known kinds while a network runs."""
    calls: list[_Call] = []

    def hook(weight: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # Weights are detached, so the lowest layer's output is where gradients must start.
            output = output if output.requires_grad else output.detach().requires_grad_()
            calls.append(_Call(weight, module, inputs[0].detach(), output))
            return output

        return record

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            weight = f"{name}.weight" if name else "weight"
            if _has_layer(module) and weight not in generic:
                hooks.callback(module.register_forward_hook(hook(weight)).remove)
        yield calls


def _has_layer(module: nn.Module) -> bool:
    if isinstance(module, nn.LayerNorm | nn.GroupNorm):
        return isinstance(module.weight, Tensor) and isinstance(module.bias, Tensor)
    if isinstance(module, nn.Conv2d):
        return (
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        )
    return isinstance(module, nn.Linear)


def _layer(
    module: nn.Module, value: Tensor, signal: Float[Tensor, "images cotangents ..."]
) -> Layer:
    if isinstance(module, nn.Conv2d):
        assert not isinstance(module.padding, str), "_has_layer leaves these out"
        patches = F.unfold(
            value, module.kernel_size, module.dilation, module.padding, module.stride
        )
        return Layer(_with_one(patches, module), signal.flatten(3))
    inputs, signals = (
        x if x.dim() > least else x.unsqueeze(-2) for x, least in ((value, 2), (signal, 3))
    )
    inputs, signals = inputs.flatten(1, -2), signals.flatten(2, -2)
    return Layer(_with_one(inputs.transpose(1, 2), module), signals.transpose(2, 3))


def _norm(
    name: str,
    module: nn.LayerNorm | nn.GroupNorm,
    value: Tensor,
    signal: Float[Tensor, "images cotangents ..."],
) -> dict[str, Float[Tensor, "images cotangents size"]]:
    """`∂/∂w = Σ δ ⊙ n` and `∂/∂b = Σ δ`, n the normalised input before scaling."""
    if isinstance(module, nn.GroupNorm):
        normed = F.group_norm(value, module.num_groups, eps=module.eps)
        moved = [x.flatten(start) for x, start in ((normed, 2), (signal, 3))]
    else:
        normed = F.layer_norm(value, module.normalized_shape, eps=module.eps)
        moved = [
            x.flatten(start, -2).transpose(-1, -2) if x.dim() > start + 1 else x[..., None]
            for x, start in ((normed, 1), (signal, 2))
        ]
    n, delta = moved
    bias = f"{name.removesuffix('weight')}bias"
    return {name: (delta * n[:, None]).sum(-1), bias: delta.sum(-1)}


def _with_one(inputs: Float[Tensor, "images d_in positions"], module: nn.Module) -> Tensor:
    if module.bias is None:
        return inputs
    return torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)


def _whole(
    model: nn.Module,
    weights: dict[str, Tensor],
    names: frozenset[str],
    images: Tensor,
    cotangents: Tensor,
) -> dict[str, Float[Tensor, "images cotangents size"]]:
    """Gradients of some parameters, image by image, by reverse mode."""
    fixed = {name: w for name, w in weights.items() if name not in names}

    def of_image(image: Tensor, pulls: Tensor) -> dict[str, Tensor]:
        _, back = vjp(  # type: ignore[misc]
            lambda w: call_at(model, {**fixed, **w}, image[None])[0],
            {name: weights[name] for name in sorted(names)},
        )
        (gradients,) = vmap(back)(pulls)
        return {name: g.flatten(1) for name, g in gradients.items()}

    gradients: dict[str, Tensor] = vmap(of_image)(images, cotangents)
    return gradients


def without_layer(model: nn.Module, images: Float[Tensor, "images ..."]) -> frozenset[str]:
    """Parameters whose layers' factors do not give autograd's gradient of `Σ_n c_n · logits_n`.

    They belong to another kind of module or to none, are shared, or do not act as their module's
    kind does. The cotangents c are random, so that a wrong signal shows.
    """
    leaves = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    with torch.enable_grad():
        logits = call_at(model, leaves, images)
    generator = torch.Generator().manual_seed(0)
    cotangents = torch.randn(logits.shape, generator=generator).to(logits)
    gradients = torch.autograd.grad(
        logits, list(leaves.values()), cotangents, materialize_grads=True
    )
    truth = dict(zip(leaves, gradients, strict=True))
    computed = _summed(model, image_factors(model, images, cotangents[:, None], frozenset()))
    wrong = differing(computed, truth)
    # A layer's factors cover its weight and its bias together.
    modules = {name.rpartition(".")[0] for name in wrong}
    return frozenset(
        wrong
        | {
            name
            for name in leaves
            if name.rpartition(".")[0] in modules and name.endswith(("weight", "bias"))
        }
    )


def _summed(model: nn.Module, factors: ImageFactors) -> dict[str, Tensor]:
    """Gradients summed over the images, from the factors."""
    sums = {
        name: whole.sum((0, 1)).view_as(model.get_parameter(name))
        for name, whole in factors.whole.items()
    }
    for name, layer in factors.layers.items():
        gradient = _formed(layer, slice(None)).sum(0).view(layer.signal.shape[2], -1)
        weight = model.get_parameter(name)
        if gradient.numel() != weight.numel():
            sums[f"{name.removesuffix('weight')}bias"] = gradient[:, -1]
            gradient = gradient[:, :-1]
        sums[name] = gradient.reshape(weight.shape)
    return sums


def _blocks(count: int) -> Iterator[slice]:
    return (slice(low, min(low + TOGETHER, count)) for low in range(0, count, TOGETHER))
