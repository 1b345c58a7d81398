"""Measures what each sequence of a batch did, by the trainer's own forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import gradients
from dynolab.forces.ledger.grouped import (
    GroupedGradients,
    add_call,
    add_products,
    groups_of,
)
from dynolab.forces.map.output_gradients import Call, recorded_calls
from dynolab.likelihood.token_logps import ResponseLogits


@dataclass
class Forward:
    """One forward pass with a gradient, and what the loss' derivative by its outputs was.

    `pulls` are by the outputs' names, [sequences, length, ...], in main memory.
    """

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    random: Any
    pulls: dict[str, Tensor] = field(default_factory=dict)

    @property
    def ids(self) -> Int[Tensor, "sequences length"]:
        """The tokens."""
        return self.named["input_ids"] if "input_ids" in self.named else self.arguments[0]

    @property
    def push(self) -> Float[Tensor, " sequences"]:
        """Minus the loss' derivative by the scores of a sequence's tokens, summed.

        Positive where it is pushed up: `−Σ_t ∂L/∂z_{t,y_{t+1}}`, z_t the logits that predict token
        y_{t+1}.
        """
        if "logits" not in self.pulls:
            return self.pulls["log_probs"].float().sum(1).neg()
        pull = self.pulls["logits"].float()
        following = self.ids[:, 1:][:, -pull.shape[1] :].cpu()
        own = pull[:, -following.shape[1] - 1 : -1].gather(-1, following[..., None])
        return -own[..., 0].sum(1)

    def alone(self, number: int) -> list[Tensor]:
        """The pulls at one sequence's outputs, zero at the others'."""
        pulls = [torch.zeros_like(pull) for pull in self.pulls.values()]
        for own, pull in zip(pulls, self.pulls.values(), strict=True):
            own[number] = pull[number]
        return pulls

    def sequences(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Every sequence's tokens without padding, and the number of those before the first label.

        Where nothing is labelled that number is 0.
        """
        everything = torch.ones_like(self.ids)
        mask = self.named.get("attention_mask")
        mask = everything if mask is None or mask.dim() != 2 else mask
        labels = self.named.get("labels")
        labelled = everything if labels is None else labels >= 0
        for ids, real, trained in zip(self.ids, mask.bool(), labelled.bool(), strict=True):
            first = int(trained[real].to(torch.uint8).argmax()) if bool(trained.any()) else 0
            yield tuple(ids[real].tolist()), first


Directions = Callable[[str], Float[Tensor, "directions parameter"]]
"""Directions of a parameter, each flat, by its name."""


class TrainerPasses:
    """What a trainer's forward passes did along some directions, sequence by sequence.

    Two hooks on the model keep what it is given and what the loss' derivative by its outputs is;
    they change nothing that passes through. After the step the same passes are made again, at the
    same weights and from the same random state: `⟨v, gradient through a sequence⟩` is the sum of
    products of a module's input and signal with v, by its rule, so that no gradient of a sequence
    is ever held. Parameters without a rule have a backward pass per sequence. Gradient
    accumulation, the loss' scale and dropout are inside.

    **Arguments:**

    - `gradients`: rules that were tried on the model.
    - `model`: makes the passes again; the trainer's, without what compiles or distributes it.
    - `called`: what the trainer calls, of which `model` is the inside.
    - `arithmetic`: the precision of the trainer's passes.
    - `rounding`: share of a parameter's gradient by which its rule may differ from autograd: in the
      first pass they are compared, as a module may be called otherwise than where its rule was
      tried.
    - `temperature`: of the log-probabilities that a fused head gives.
    - `whole`: the model's weights are whole. Otherwise rules are not compared, and parameters
      without one are left out.
    """

    def __init__(
        self,
        gradients: GroupedGradients,
        model: nn.Module,
        called: nn.Module,
        *,
        arithmetic: Callable[[], AbstractContextManager[Any]] = nullcontext,
        rounding: float = 1e-3,
        temperature: float = 1.0,
        whole: bool = True,
    ) -> None:
        self.policy: PolicyFunction = gradients.policy
        self.names = gradients.names
        self.forwards: list[Forward] = []
        self.error: Exception | None = None
        self._rules = gradients.rules
        self._generic = gradients.generic if whole else frozenset()
        self._model, self._called = model, called
        self._arithmetic, self._rounding, self._temperature = arithmetic, rounding, temperature
        self._tried = not whole
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Sets the hooks; forgets earlier forwards."""
        self.forwards, self.error = [], None
        self._handles = [
            self._called.register_forward_pre_hook(self._enter, with_kwargs=True),
            self._called.register_forward_hook(self._leave),
        ]

    def end(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def made(self) -> list[Forward]:
        """The forwards since `begin` whose outputs the loss uses.

        **Raises:** the error of a hook; `ConfigError` where there was no such forward.
        """
        self.end()
        if self.error is not None:
            raise self.error
        self.forwards = [forward for forward in self.forwards if forward.pulls]
        if not self.forwards:
            raise ConfigError(
                "trainer",
                type(self._model).__name__,
                "its training calls no forward pass of the model that gives logits or "
                "log-probabilities with a gradient; watch answers by ProbeCallback",
            )
        return self.forwards

    @torch.no_grad()
    def products(
        self, directions: Directions, count: int
    ) -> dict[str, Float[Tensor, "sequences directions"]]:
        """`⟨v, ∂ loss/∂θ⟩` through every sequence for each of `count` directions v, by parameter.

        The model has the weights of the training's own passes. Directions are asked for in the same
        order on all ranks, whose passes are equally many.
        """
        each = [self._again(forward, directions, count) for forward in self.forwards]
        return {name: torch.cat([own[name] for own in each]) for name in self.names}

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.error is not None:
            return
        try:
            device = self.policy.device
            on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
            forward = Forward(arguments, dict(named), (torch.get_rng_state(), on_gpu))
            positions, mask = named.get("position_ids"), named.get("attention_mask")
            if positions is not None:
                falls = positions.diff(dim=-1) < 0
                if mask is not None and mask.dim() == 2:  # what padding has is not read
                    falls = falls & mask[:, 1:].bool() & mask[:, :-1].bool()
                if bool(falls.any()):
                    raise ConfigError(
                        "trainer.data_collator",
                        "positions that begin again within a row",
                        "forces tell sequences apart by their rows; turn off packing and "
                        "padding_free",
                    )
            self.forwards.append(forward)
        except Exception as error:  # the trainer's own pass goes on
            self.error = error

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled() or self.error is not None:
            return
        try:
            forward = self.forwards[-1]
            for name, value in _differentiable(output, len(forward.ids)).items():
                value.register_hook(partial(_keep, forward.pulls, name))
        except Exception as error:
            self.error = error

    def _again(
        self, forward: Forward, directions: Directions, count: int
    ) -> dict[str, Float[Tensor, "sequences directions"]]:
        policy, hidden = self.policy, list[Tensor]()
        zeros = torch.zeros(len(forward.ids), count, dtype=torch.float64, device=policy.device)
        by_name = {name: zeros.clone() for name in self.names}
        with ExitStack() as stack:
            stack.enter_context(_replayed(self._model, forward.random, policy.device))
            stack.enter_context(self._arithmetic())
            base: Any = policy.causal.base_model
            keep = base.register_forward_hook(lambda *of: hidden.append(of[2][0].detach()))
            stack.callback(keep.remove)
            with recorded_calls(self._rules, set()) as calls, torch.enable_grad():
                output = self._model(*forward.arguments, **forward.named)
            given = _differentiable(output, len(forward.ids))
            outputs = [given[name] for name in forward.pulls]
            if not self._tried:
                self._try(forward, calls, outputs, hidden[0])
            kept = bool(self._generic)
            signals = self._signals(forward, calls, outputs, forward.pulls.values(), kept)
            for rule in self._rules:
                along = {name: directions(name) for name in rule.names}
                for call, signal, where in signals:
                    if call.rule is rule:
                        add_products(
                            rule, *typed(call, signal, policy.dtype), where, along, by_name
                        )
            if "logits" not in forward.pulls:
                heads = [name for rule in self._rules if rule.head for name in rule.names]
                along = {name: directions(name) for name in heads}
                for number in range(len(forward.ids)):
                    for rule, value, signal in self._head(forward, hidden[0], number):
                        where = torch.full((len(signal),), number, device=signal.device)
                        add_products(rule, value, signal, where, along, by_name)
            self._by_autograd(forward, outputs, directions, by_name)
        return by_name

    def _signals(
        self,
        forward: Forward,
        calls: Sequence[Call],
        outputs: Sequence[Tensor],
        pulls: Iterable[Tensor],
        kept: bool,
    ) -> list[tuple[Call, Tensor, Tensor]]:
        """Signal and every position's sequence of the calls that the loss depends on."""
        policy = self.policy
        deltas = torch.autograd.grad(
            outputs,
            [call.output for call in calls],
            [pull.to(policy.device) for pull in pulls],
            retain_graph=kept,
            allow_unused=True,
        )
        group, signals = torch.arange(len(forward.ids), device=policy.device), []
        for call, delta in zip(calls, deltas, strict=True):
            where = groups_of(call.output.shape[:-1], forward.ids.shape, group)
            if delta is not None and where is not None:
                signals.append((call, delta, where))
        return signals

    def _try(
        self, forward: Forward, calls: Sequence[Call], outputs: Sequence[Tensor], hidden: Tensor
    ) -> None:
        """Takes rules away that give another gradient than autograd of the sequence pulled most."""
        self._tried = True
        strength = sum(p.flatten(1).abs().sum(1).double() for p in forward.pulls.values())
        number = int(torch.as_tensor(strength).argmax())
        pulls = forward.alone(number)
        trained = dict(self.policy.model.named_parameters())
        sizes = [trained[name].numel() for name in self.names]
        # Rows of the sequences before it, its own, and of those after it.
        rows = torch.zeros(3, sum(sizes), dtype=self.policy.dtype, device=self.policy.device)
        named = dict(zip(self.names, rows.split(sizes, dim=1), strict=True))
        for call, signal, where in self._signals(forward, calls, outputs, pulls, True):
            side = (where >= number).long() + (where > number)
            add_call(call.rule, *typed(call, signal, rows.dtype), side, named)
        if "logits" not in forward.pulls:
            for rule, value, signal in self._head(forward, hidden, number):
                own = torch.ones(len(signal), dtype=torch.long, device=signal.device)
                add_call(rule, value, signal, own, named)
        truth = torch.autograd.grad(
            outputs,
            [trained[name] for name in self.names],
            [pull.to(self.policy.device) for pull in pulls],
            retain_graph=True,
            materialize_grads=True,
        )
        least = 1e-6 * max(float(gradient.norm()) for gradient in truth)
        wrong = set()
        for name, gradient in zip(self.names, truth, strict=True):
            named[name][1] -= gradient.flatten()
            if float(named[name].norm()) > self._rounding * float(gradient.norm()) + least:
                wrong.add(name)
        lost = [rule for rule in self._rules if wrong & set(rule.names)]
        self._rules = tuple(rule for rule in self._rules if rule not in lost)
        self._generic |= wrong | {name for rule in lost for name in rule.names}

    def _by_autograd(
        self,
        forward: Forward,
        outputs: Sequence[Tensor],
        directions: Directions,
        by_name: dict[str, Tensor],
    ) -> None:
        """The products of parameters without a rule, a backward pass a sequence."""
        trained = dict(self.policy.model.named_parameters())
        leaves = {name: trained[name] for name in self.names if name in self._generic}
        along = {name: directions(name) for name in leaves}
        for number in range(len(forward.ids) if leaves else 0):
            alone = [pull.to(self.policy.device) for pull in forward.alone(number)]
            for name, gradient in gradients(outputs, leaves, alone).items():
                by_name[name][number] = along[name] @ gradient.flatten().to(along[name])

    def _head(self, forward: Forward, hidden: Tensor, number: int) -> Iterator[tuple[Any, ...]]:
        """Rule, input and signal of the head where its weight was used without a call of it."""
        heads = [rule for rule in self._rules if rule.head]
        labels, dtype = forward.named["labels"][number, 1:], self.policy.dtype
        # Where there is no label, log π is a constant zero.
        places = (labels >= 0).nonzero()[:, 0]
        pull = forward.pulls["log_probs"][number].to(hidden.device)[places]
        with recorded_calls(heads, set()) as calls, torch.enable_grad():
            scores = ResponseLogits(self.policy.model).head(hidden[number, places])
            scores = (scores / self._temperature).log_softmax(-1)
            total = (pull * scores.gather(-1, labels[places, None])[:, 0]).sum()
        for call in calls:
            (signal,) = torch.autograd.grad(total, [call.output], retain_graph=True)
            yield call.rule, *typed(call, signal, dtype)


def typed(call: Call, signal: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A call's input and its signal, positions × d_out, in a dtype; an embedding's input is ids."""
    value = call.input.detach()
    value = value if call.rule.kind == "embedding" else value.to(dtype)
    return value, signal.to(dtype).flatten(0, -2)


def _keep(pulls: dict[str, Tensor], name: str, pull: Tensor | None) -> None:
    """A hook; compiled passes call it with None for what the loss does not use."""
    if pull is not None:
        pulls[name] = pull.detach().cpu()


def _differentiable(output: Any, sequences: int) -> dict[str, Tensor]:
    """The outputs with a row per sequence and a gradient, such as logits, by their names."""
    return {
        name: value
        for name in ("logits", "log_probs", "entropy")
        if isinstance(value := getattr(output, name, None), Tensor)
        and value.requires_grad
        and len(value) == sequences
    }


@contextmanager
def _replayed(model: nn.Module, state: tuple[Tensor, Tensor | None], device: torch.device):  # type: ignore[no-untyped-def]
    """A pass from an earlier random state that leaves the state, buffers and gradients as they are.

    Gradient checkpointing, which changes no number, is off.
    """
    checkpointing = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        for module in checkpointing:
            module.gradient_checkpointing = False  # type: ignore[assignment]
        try:
            yield
        finally:
            for module in checkpointing:
                module.gradient_checkpointing = True  # type: ignore[assignment]
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
