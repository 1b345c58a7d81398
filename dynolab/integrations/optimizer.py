"""A trainer's own optimizer as an affine map of the gradient, also where DeepSpeed splits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.forces.function.weights import NamedTensors
from dynolab.forces.step.optimizers import (
    Clipping,
    OptimizerMap,
    UpdateFacts,
    is_linear,
    optimizer_map,
)
from dynolab.integrations.sharded import Share, local
from dynolab.training.config import OptimizerConfig
from dynolab.training.shards import Stretch

FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
SECOND_MOMENTS = ("exp_avg_sq", "square_avg")
"""torch's names of what Adam and RMSprop keep of the squares."""


@dataclass(frozen=True)
class ScaledGradients:
    """Gradients as they are read right before the step, flat, by parameter.

    With g the gradient of a loss, averaged over the ranks: `by_name` is `factor · g` (`factor` is
    `clip` where it is clipped already, else 1), the step goes by `clip · g`, as `clipping` says,
    and the backward passes differentiate `scale` times that loss. DeepSpeed's is the scaled loss,
    whose scale is in `clip`.
    """

    by_name: Mapping[str, Float[Tensor, " size"]]
    factor: float
    clip: float
    clipping: Clipping
    scale: float = 1.0


State = tuple[dict[str, Any], Mapping[str, Any], bool]
"""A parameter's options and the optimizer's tensors of it, and whether it is left alone."""


class OptimizerView(Protocol):
    """What a trainer's optimizer works on, this rank's part of each trained parameter.

    All ranks call each method together.
    """

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """torch's own, without what wraps it."""

    def weights(self) -> NamedTensors:
        """The numbers that the optimizer updates."""

    def gradients(self) -> ScaledGradients:
        """Gradients, between the last backward pass and the step."""

    def states(self) -> dict[str, State]:
        """The optimizer's tensors, as torch's optimizers keep them."""

    def close(self) -> None:
        """Gives back what it took from the trainer."""


class TrainerOptimizer:
    """Of a trainer whose optimizer works on the model's own parameters, whole or split by FSDP2."""

    def __init__(self, trainer: Any, parameters: Mapping[str, Any]) -> None:
        self._accelerator, self._parameters = trainer.accelerator, parameters
        optimizer = trainer.optimizer
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        # Of the last clipping: the norm before it, and its bound.
        self._norm, self._bound = 0.0, float("inf")
        self._clip = self._accelerator.clip_grad_norm_

        def clip(parameters: Any, max_norm: Any, *arguments: Any, **named: Any) -> Any:
            norm = self._clip(parameters, max_norm, *arguments, **named)
            self._norm, self._bound = norm, max_norm
            return norm

        # Gradients are clipped in place, and say nothing of the norm that they had.
        self._accelerator.clip_grad_norm_ = self._watching = clip

    def weights(self) -> NamedTensors:
        """The numbers that the optimizer updates."""
        return {name: local(p).detach() for name, p in self._parameters.items()}

    def gradients(self) -> ScaledGradients:
        """Gradients, between the last backward pass and the step."""
        by_name = {}
        for name, p in self._parameters.items():
            gradient = torch.zeros_like(local(p)) if p.grad is None else local(p.grad)
            by_name[name] = gradient.flatten()
        norm: Any = self._norm
        norm = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        clipping = Clipping(float(self._bound))
        factor = float(clipping.factor(torch.tensor(norm, dtype=torch.float64)))
        scaler = self._accelerator.scaler
        scale = 1.0 if scaler is None else scaler.get_scale()
        # Clipped already, so that what they hold is what the step makes of g.
        return ScaledGradients(by_name, factor, factor, clipping, scale)

    def states(self) -> dict[str, State]:
        """The optimizer's tensors, as torch's optimizers keep them."""
        group_of: dict[int, dict[str, Any]] = {}
        for group in self.optimizer.param_groups:
            group_of |= {id(p): group for p in group["params"]}
        first_group = self.optimizer.param_groups[0]
        states: dict[str, State] = {}
        for name, p in self._parameters.items():
            state = {}
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, Tensor) and value.shape == p.shape:
                    value = local(value.detach()).flatten()
                state[key] = value
            # torch's optimizers pass over both.
            still = id(p) not in group_of or p.grad is None
            states[name] = (group_of.get(id(p), first_group), state, still)
        return states

    def close(self) -> None:
        """Gives back what it took from the trainer."""
        # Else another one watches through it.
        if self._accelerator.clip_grad_norm_ is self._watching:
            self._accelerator.clip_grad_norm_ = self._clip


@dataclass(frozen=True)
class Part:
    """One parameter's step as flat vectors: weights, the optimizer's tensors, and gradient.

    `facts` are None for an optimizer of unknown form. Its step is taken to be `−rate` times the
    gradient, which has lines, and a rest, which has none. `scaled` is `factor` times the gradient
    of the loss (`ScaledGradients`). `still`: the optimizer leaves the parameter alone.
    """

    facts: UpdateFacts | None
    theta: Float[Tensor, " size"]
    state: Mapping[str, Float[Tensor, " size"]]
    scaled: Float[Tensor, " size"]
    factor: float = 1.0
    still: bool = False
    rate: float = 0.0

    @property
    def gradient(self) -> Float[Tensor, " size"]:
        """Of the loss, before clipping."""
        return self.scaled.to(self.theta) / self.factor

    @property
    def linear(self) -> bool:
        """Whether the step, as far as it is known, is linear in the gradient."""
        return self.facts is None or is_linear(self.facts.optimizer)

    def at(self, columns: slice) -> OptimizerMap:
        """The map of some of its numbers."""
        gradient = self.scaled[columns].to(self.theta) / self.factor
        if self.facts is None:
            # Plain SGD at this rate makes `−rate · g`.
            plain = OptimizerConfig.model_construct(name="sgd", learning_rate=self.rate)
            facts = UpdateFacts(0, self.rate, 1.0, plain)
            return optimizer_map(facts, torch.zeros_like(gradient), {}, gradient)
        state = {key: value[columns].to(gradient) for key, value in self.state.items()}
        update_map = optimizer_map(self.facts, self.theta[columns], state, gradient)
        return update_map.at_rest() if self.still else update_map

    def gathered(self, share: Share, columns: slice) -> OptimizerMap:
        """The map of some numbers of the whole parameter, which all ranks ask for together."""
        if not share.split:
            return self.at(columns)
        # All in one exchange between ranks.
        vectors = [self.theta, self.scaled, *self.state.values()]
        theta, scaled, *state = share.gathered(vectors, columns)
        named = dict(zip(self.state, state, strict=True))
        return replace(self, theta=theta, scaled=scaled, state=named).at(slice(None))


def config_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> OptimizerConfig | None:
    """One of torch's optimizers as ours; None for one of another form."""
    kind = type(optimizer)
    special = ("amsgrad", "maximize", "nesterov", "centered", "dampening")
    if any(group.get(option) for option in special):
        return None
    common = {"learning_rate": group["lr"], "weight_decay": group.get("weight_decay", 0.0)}
    if kind is torch.optim.SGD:
        return OptimizerConfig.model_construct(name="sgd", momentum=group["momentum"], **common)
    # Without decay Adam and AdamW are the same.
    if kind is torch.optim.AdamW or (kind is torch.optim.Adam and not group["weight_decay"]):
        return OptimizerConfig.model_construct(
            name="adamw", betas=group["betas"], epsilon=group["eps"], **common
        )
    if kind is torch.optim.RMSprop:
        return OptimizerConfig.model_construct(
            name="rmsprop",
            momentum=group["momentum"],
            smoothing=group["alpha"],
            epsilon=group["eps"],
            **common,
        )
    return None


def around_next_step(engine: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Does something right before and after the engine's next update of the weights.

    accelerate has the engine make it inside `backward`, before the trainer's callbacks are asked.

    **Arguments:** `before`, `after`: raise nothing.
    """
    usual, replaced = engine.step, vars(engine).get("step")  # somebody else's, on the instance

    def step(*arguments: Any, **named: Any) -> Any:
        if not engine.is_gradient_accumulation_boundary():
            return usual(*arguments, **named)
        del engine.step  # the class's own is there again
        if replaced is not None:
            engine.step = replaced
        before()
        result = usual(*arguments, **named)
        after()
        return result

    engine.step = step


class ZeroOptimizer:
    """Of ZeRO-1 and ZeRO-2 (`OptimizerView`): every rank gets all of it.

    **Arguments:** `engine`: DeepSpeed's; `parameters`: the trained ones, by name.

    **Raises:** `ConfigError` where DeepSpeed does not say which share is which parameter's.
    """

    def __init__(self, engine: Any, parameters: Mapping[str, Any]) -> None:
        self._zero, self._parameters = engine.optimizer, parameters
        if not hasattr(self._zero, "single_partition_of_fp32_groups"):
            raise ConfigError(
                "trainer.args.deepspeed",
                type(self._zero).__name__,
                "hides its gradients; set zero_optimization.stage to 2",
            )
        if self._zero.round_robin_gradients:
            raise ConfigError(
                "zero_optimization.round_robin_gradients",
                True,
                "mixes the parameters' shares up; set false",
            )
        self.optimizer = self._zero.optimizer
        self._group: dict[int, dict[str, Any]] = {}
        groups = zip(self._zero.bit16_groups, self.optimizer.param_groups, strict=True)
        for members, group in groups:
            self._group |= {id(p): group for p in members}

    def weights(self) -> NamedTensors:
        """The fp32 weights that the optimizer updates."""
        numbers = self._gathered(lambda _, stretch: stretch.of(stretch.group))
        return {name: numbers[name].view_as(p) for name, p in self._parameters.items()}

    def gradients(self) -> ScaledGradients:
        """Gradients are means over the ranks, before clipping, of the loss as it is scaled."""
        gradients = self._gathered(_gradient)
        square = sum(
            float(gradient.double() @ gradient.double()) for gradient in gradients.values()
        )
        return _clipped_by_deepspeed(self._zero, gradients, square)

    def states(self) -> dict[str, State]:
        """The optimizer's tensors, as torch's optimizers keep them."""
        # Which tensors there are is the same for every group.
        first = self._zero.single_partition_of_fp32_groups[0]
        tensors = {
            key: self._gathered(partial(self._state, key))
            for key, value in self.optimizer.state.get(first, {}).items()
            if isinstance(value, Tensor) and value.shape == first.shape
        }
        states: dict[str, State] = {}
        for name, parameter in self._parameters.items():
            group = self._group[id(parameter)]
            steps = self.optimizer.state.get(group["params"][0], {}).get("step", 0)
            state = {key: numbers[name] for key, numbers in tensors.items()}
            states[name] = (group, {"step": steps, **state}, False)
        return states

    def close(self) -> None:
        """Nothing was taken."""

    def _state(self, key: str, _: Any, stretch: Stretch) -> Float[Tensor, " stretch"]:
        return stretch.of(self.optimizer.state[stretch.group][key])

    def _gathered(
        self, read: Callable[[Any, Stretch], Float[Tensor, " stretch"]]
    ) -> dict[str, Float[Tensor, " size"]]:
        """Every parameter's numbers, from the stretches of all ranks.

        DeepSpeed's lp is the model's low-precision parameter, hp the optimizer's flat fp32 tensor:
        `mine` is this rank's stretch in the first, `there` its place in the second.
        """
        sizes = [p.numel() for p in self._parameters.values()]
        share = torch.zeros(sum(sizes), device=self._zero.bit16_groups_flat[0].device)
        parts = dict(zip(self._parameters, share.split(sizes), strict=True))
        for name, parameter in self._parameters.items():
            fragments = parameter._hp_mapping
            if fragments is None:  # all of it is another rank's
                continue
            mine, there = fragments.lp_fragment_address, fragments.hp_fragment_address
            group = self._zero.single_partition_of_fp32_groups[fragments.param_group_index]
            stretch = Stretch(name, mine.start, mine.numel, group, there.start)
            parts[name][mine.start : mine.start + mine.numel] = read(parameter, stretch)
        distributed.add_up(share)
        return parts


class ZeroThreeOptimizer:
    """Of ZeRO-3 (`OptimizerView`): this rank's stretches, flat, in fp32.

    **Arguments:** as of `ZeroOptimizer`.
    """

    def __init__(self, engine: Any, parameters: Mapping[str, Any]) -> None:
        self._zero, self._parameters = engine.optimizer, parameters
        self.optimizer = self._zero.optimizer
        self._sizes = {name: Share.of(p).size for name, p in parameters.items()}

    def weights(self) -> NamedTensors:
        """The fp32 weights that the optimizer updates."""
        return self._stretches(self._zero.get_local_fp32_param)

    def gradients(self) -> ScaledGradients:
        """Gradients are means over the ranks, before clipping, of the loss as it is scaled."""
        gradients = self._stretches(self._zero.get_local_fp32_grad_for_param)
        squares = [gradient.double() @ gradient.double() for gradient in gradients.values()]
        square = distributed.add_up(torch.stack(squares).sum())
        return _clipped_by_deepspeed(self._zero, gradients, float(square))

    def states(self) -> dict[str, State]:
        """The optimizer's tensors, as torch's optimizers keep them."""
        zero, states = self._zero, dict[str, State]()
        for name, parameter in self._parameters.items():
            place, start, _ = zero.grad_position[zero.get_param_id(parameter)]
            flat, size = zero.fp32_partitioned_groups_flat[place], self._sizes[name]
            state = {}
            for key, value in self.optimizer.state.get(flat, {}).items():
                if isinstance(value, Tensor) and value.shape == flat.shape:
                    value = value[start : start + size]
                state[key] = value
            group = self.optimizer.param_groups[zero.sub_group_to_group_id[place]]
            states[name] = (group, state, False)
        return states

    def close(self) -> None:
        """Nothing was taken."""

    def _stretches(
        self, read: Callable[[Any], Float[Tensor, " padded"]]
    ) -> dict[str, Float[Tensor, " size"]]:
        # The last rank's are padded.
        return {name: read(p)[: self._sizes[name]] for name, p in self._parameters.items()}


def _clipped_by_deepspeed(
    optimizer: Any, gradients: Mapping[str, Float[Tensor, " size"]], square: float
) -> ScaledGradients:
    """What DeepSpeed's optimizer gets, of this squared norm: the gradients of a scaled loss."""
    clipping = Clipping(float(optimizer.clip_grad) or math.inf, float(optimizer.loss_scale))
    factor = float(clipping.factor(torch.tensor(square**0.5, dtype=torch.float64)))
    # Not clipped yet, so that they are g itself; the step's factor takes the loss' scale back.
    return ScaledGradients(gradients, 1.0, factor, clipping)


def _gradient(parameter: Any, stretch: Stretch) -> Float[Tensor, " stretch"]:
    """This rank's part of a gradient; some ranks hold the whole one."""
    fragment: Float[Tensor, " ..."] = parameter._hp_mapping.get_lp_grad_fragment(
        parameter._index_in_param_group
    )
    flat = fragment.flatten()
    start = stretch.start if len(flat) == parameter.numel() else 0
    return flat[start : start + stretch.size]
