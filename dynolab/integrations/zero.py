"""DeepSpeed's ZeRO: what it splits over ranks, and the step inside `backward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.integrations.optimizer import Given, State
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


class ZeroHeld:
    """Of ZeRO-1 and ZeRO-2 (`dynolab.integrations.optimizer.Held`): every rank gets all of it.

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
        groups = zip(self._zero.bit16_groups, self.optimizer.param_groups, strict=True)
        self._group = {id(p): group for members, group in groups for p in members}

    def weights(self) -> dict[str, Tensor]:
        """The fp32 weights that the optimizer updates."""
        whole = self._whole(lambda _, stretch: stretch.of(stretch.group))
        return {name: whole[name].view_as(p) for name, p in self._parameters.items()}

    def given(self) -> Given:
        """Gradients are means over the ranks, before clipping, of the loss as it is scaled."""
        gradients = self._whole(_gradient)
        square = sum(float(own.double() @ own.double()) for own in gradients.values())
        return Given(gradients, 1.0, _clip_factor(self._zero, square))

    def states(self) -> dict[str, State]:
        """As `Held` has it."""
        first = self._zero.single_partition_of_fp32_groups[0]
        tensors = {
            key: self._whole(partial(self._state, key))
            for key, value in self.optimizer.state.get(first, {}).items()
            if isinstance(value, Tensor) and value.shape == first.shape
        }
        states: dict[str, State] = {}
        for name, parameter in self._parameters.items():
            group = self._group[id(parameter)]
            steps = self.optimizer.state.get(group["params"][0], {}).get("step", 0)
            state = {key: whole[name] for key, whole in tensors.items()}
            states[name] = (group, {"step": steps, **state}, False)
        return states

    def close(self) -> None:
        """Nothing was taken."""

    def _state(self, key: str, _: Any, stretch: Stretch) -> Tensor:
        return stretch.of(self.optimizer.state[stretch.group][key])

    def _whole(self, own: Callable[[Any, Stretch], Tensor]) -> dict[str, Float[Tensor, " size"]]:
        """Every parameter's numbers, from the stretches of all ranks."""
        sizes = [p.numel() for p in self._parameters.values()]
        share = torch.zeros(sum(sizes), device=self._zero.bit16_groups_flat[0].device)
        parts = dict(zip(self._parameters, share.split(sizes), strict=True))
        for name, parameter in self._parameters.items():
            if (held := parameter._hp_mapping) is None:
                continue
            mine, there = held.lp_fragment_address, held.hp_fragment_address
            group = self._zero.single_partition_of_fp32_groups[held.param_group_index]
            stretch = Stretch(name, mine.start, mine.numel, group, there.start)
            parts[name][mine.start : mine.start + mine.numel] = own(parameter, stretch)
        distributed.add_up(share)
        return parts


class ZeroThreeHeld:
    """Of ZeRO-3 (`dynolab.integrations.optimizer.Held`): this rank's stretches, flat, in fp32.

    **Arguments:** as of `ZeroHeld`.
    """

    def __init__(self, engine: Any, parameters: Mapping[str, Any]) -> None:
        self._zero, self._parameters = engine.optimizer, parameters
        self.optimizer = self._zero.optimizer
        self._sizes = {name: Share.of(p).size for name, p in parameters.items()}

    def weights(self) -> dict[str, Tensor]:
        """The fp32 weights that the optimizer updates."""
        return self._own(self._zero.get_local_fp32_param)

    def given(self) -> Given:
        """Gradients are means over the ranks, before clipping, of the loss as it is scaled."""
        gradients = self._own(self._zero.get_local_fp32_grad_for_param)
        squares = [own.double() @ own.double() for own in gradients.values()]
        square = distributed.add_up(torch.stack(squares).sum())
        return Given(gradients, 1.0, _clip_factor(self._zero, float(square)))

    def states(self) -> dict[str, State]:
        """As `Held` has it."""
        zero, states = self._zero, dict[str, State]()
        for name, parameter in self._parameters.items():
            place, start, _ = zero.grad_position[zero.get_param_id(parameter)]
            whole, own = zero.fp32_partitioned_groups_flat[place], self._sizes[name]
            state = {
                key: value[start : start + own]
                if isinstance(value, Tensor) and value.shape == whole.shape
                else value
                for key, value in self.optimizer.state.get(whole, {}).items()
            }
            group = self.optimizer.param_groups[zero.sub_group_to_group_id[place]]
            states[name] = (group, state, False)
        return states

    def close(self) -> None:
        """Nothing was taken."""

    def _own(self, read: Callable[[Any], Tensor]) -> dict[str, Tensor]:
        return {name: read(p)[: self._sizes[name]] for name, p in self._parameters.items()}


def _clip_factor(optimizer: Any, square: float) -> float:
    """What a step of DeepSpeed's optimizer multiplies gradients by, of the given squared norm."""
    scale, most = float(optimizer.loss_scale), float(optimizer.clip_grad)
    return 1 / (scale * max(1.0, (square**0.5 / scale + 1e-6) / most if most else 1.0))


def _gradient(parameter: Any, stretch: Stretch) -> Tensor:
    """This rank's part of a gradient; some ranks hold the whole one."""
    held: Tensor = parameter._hp_mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    flat = held.flatten()
    start = stretch.start if len(flat) == parameter.numel() else 0
    return flat[start : start + stretch.size]
