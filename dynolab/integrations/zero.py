"""DeepSpeed's ZeRO: what it splits over ranks, and the step inside `backward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.errors import ConfigError
from dynolab.integrations.sharded import Share
from dynolab.training.shards import Stretch


def around_next_step(engine: Any, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Does something right before and after the engine's next update of the weights.

    accelerate has the engine make it inside `backward`, before the trainer's callbacks are asked.

    **Arguments:** `before`, `after`: raise nothing.
    """
    usual, own = engine.step, vars(engine).get("step")

    def step(*arguments: Any, **named: Any) -> Any:
        if not engine.is_gradient_accumulation_boundary():
            return usual(*arguments, **named)
        del engine.step  # the class's own is there again
        if own is not None:
            engine.step = own
        before()
        made = usual(*arguments, **named)
        after()
        return made

    engine.step = step


class ZeroShares:
    """This rank's shares of weights, gradients and optimizer states.

    A share is one vector of all parameters, zero where another rank holds them: shares add up.

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
        base = self._zero.optimizer
        groups = zip(self._zero.bit16_groups, base.param_groups, strict=True)
        self._group = {id(p): group for members, group in groups for p in members}

    def weights(self) -> Float[Tensor, " parameters"]:
        """The fp32 weights that the optimizer updates."""
        return self._share(lambda _, stretch: stretch.of(stretch.group))

    def gradients(self) -> Float[Tensor, " parameters"]:
        """Means over the ranks, between `backward` and step: of the loss as it is scaled."""
        return self._share(_gradient)

    def tensors(self) -> dict[str, Float[Tensor, " parameters"]]:
        """The optimizer's tensors by their keys."""
        shares = {}
        first = self._zero.single_partition_of_fp32_groups[0]
        for key, value in self._zero.optimizer.state.get(first, {}).items():
            if isinstance(value, Tensor) and value.shape == first.shape:
                shares[key] = self._share(partial(self._state, key))
        return shares

    def states(self, whole: Mapping[str, Tensor]) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Each parameter's group of options and state, as torch's optimizers keep them.

        **Arguments:** `whole`: the optimizer's tensors by key, added up over ranks.
        """
        sizes = [p.numel() for p in self._parameters.values()]
        tensors = {key: value.split(sizes) for key, value in whole.items()}
        made = {}
        for place, (name, parameter) in enumerate(self._parameters.items()):
            group = self._group[id(parameter)]
            steps = self._zero.optimizer.state.get(group["params"][0], {}).get("step", 0)
            state = {key: parts[place].view_as(parameter) for key, parts in tensors.items()}
            made[name] = (group, {"step": steps, **state})
        return made

    def clip_factor(self, norm: float) -> float:
        """What the step multiplies the gradients by, whose norm is given."""
        return clip_factor(self._zero, norm)

    def _state(self, key: str, _: Any, stretch: Stretch) -> Tensor:
        return stretch.of(self._zero.optimizer.state[stretch.group][key])

    def _share(self, own: Callable[[Any, Stretch], Tensor]) -> Float[Tensor, " parameters"]:
        sizes = [p.numel() for p in self._parameters.values()]
        share = torch.zeros(sum(sizes), device=self._zero.bit16_groups_flat[0].device)
        for (name, parameter), whole in zip(
            self._parameters.items(), share.split(sizes), strict=True
        ):
            if (held := parameter._hp_mapping) is None:
                continue
            mine, there = held.lp_fragment_address, held.hp_fragment_address
            group = self._zero.single_partition_of_fp32_groups[held.param_group_index]
            stretch = Stretch(name, mine.start, mine.numel, group, there.start)
            whole[mine.start : mine.start + mine.numel] = own(parameter, stretch)
        return share


class ZeroThree:
    """This rank's stretches of what ZeRO-3 splits, flat, in fp32, by parameter.

    **Arguments:** as of `ZeroShares`.
    """

    def __init__(self, engine: Any, parameters: Mapping[str, Any]) -> None:
        self._zero, self._parameters = engine.optimizer, parameters
        self._sizes = {name: Share.of(p).size for name, p in parameters.items()}

    def weights(self) -> dict[str, Float[Tensor, " size"]]:
        """The fp32 weights that the optimizer updates."""
        return self._own(self._zero.get_local_fp32_param)

    def gradients(self) -> dict[str, Float[Tensor, " size"]]:
        """Means over the ranks, before clipping, of the loss as it is scaled."""
        return self._own(self._zero.get_local_fp32_grad_for_param)

    def states(self) -> dict[str, tuple[Any, dict[str, Any]]]:
        """Each parameter's group of options and state, as torch's optimizers keep them."""
        zero, found = self._zero, {}
        for name, parameter in self._parameters.items():
            place, start, size = zero.grad_position[zero.get_param_id(parameter)]
            whole = zero.fp32_partitioned_groups_flat[place]
            group = zero.optimizer.param_groups[zero.sub_group_to_group_id[place]]
            found[name] = (
                group,
                {
                    key: value[start : start + size][: self._sizes[name]]
                    if isinstance(value, Tensor) and value.shape == whole.shape
                    else value
                    for key, value in zero.optimizer.state.get(whole, {}).items()
                },
            )
        return found

    def clip_factor(self, norm: float) -> float:
        """What the step multiplies the gradients by, whose norm is given."""
        return clip_factor(self._zero, norm)

    def _own(self, read: Callable[[Any], Tensor]) -> dict[str, Tensor]:
        return {name: read(p)[: self._sizes[name]] for name, p in self._parameters.items()}


def clip_factor(optimizer: Any, norm: float) -> float:
    """What a step of DeepSpeed's optimizer multiplies the gradients by, whose norm is given."""
    scale, most = float(optimizer.loss_scale), float(optimizer.clip_grad)
    return 1 / (scale * max(1.0, (norm / scale + 1e-6) / most if most else 1.0))


def _gradient(parameter: Any, stretch: Stretch) -> Tensor:
    """This rank's part of a gradient; some ranks hold the whole one."""
    held: Tensor = parameter._hp_mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    flat = held.flatten()
    start = stretch.start if len(flat) == parameter.numel() else 0
    return flat[start : start + stretch.size]
