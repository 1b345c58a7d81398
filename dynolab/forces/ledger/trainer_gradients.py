"""Gradients of a batch's sequences, from the backward pass that a trainer makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import head_module
from dynolab.forces.function.weights import gradients
from dynolab.forces.ledger.grouped import GroupedGradients, add_call, groups_of
from dynolab.forces.map.output_gradients import Call, recorded_calls
from dynolab.likelihood.token_logps import ResponseLogits


@dataclass
class Forward:
    """One forward pass with a gradient, and what the loss' derivative by its outputs was.

    `pulls` are by the outputs' names, [sequences, length, ...]. Once they are used, `rows` has the
    gradient of the loss through each sequence, and `push` minus the loss' derivative by the scores
    of its tokens, summed: positive where it is pushed up.
    """

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    random: Any
    pulls: dict[str, Tensor] = field(default_factory=dict)
    rows: Float[Tensor, "sequences parameters"] | None = None
    push: Float[Tensor, " sequences"] | None = None

    @property
    def ids(self) -> Int[Tensor, "sequences length"]:
        """The tokens."""
        return self.named["input_ids"] if "input_ids" in self.named else self.arguments[0]

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


class TrainerGradients:
    """Gradients of the loss through each sequence that a trainer's forward passes read.

    Two hooks on the model keep what it is given and what the loss' derivative by its outputs is;
    they change nothing that passes through. The same forward pass is then made again, from the same
    random state, and its gradients are split by sequence: of a module by its rule, of parameters
    without one by autograd, a backward pass per sequence. In the first pass the sums are compared
    with autograd's, too: a module may be called otherwise than where its rule was tried. Gradient
    accumulation, the loss' scale and dropout are inside.

    **Arguments:**

    - `gradients`: rules that were tried on the model.
    - `model`: makes the passes again; the trainer's, without what compiles or distributes it.
    - `called`: what the trainer calls, of which `model` is the inside.
    - `arithmetic`: the precision of the trainer's passes.
    - `rounding`: share of its sequences' norms by which a gradient may differ from autograd's.
    - `temperature`: of the log-probabilities that a fused head gives.
    - `left_out`: parameters whose gradients are not taken.
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
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        self.policy: PolicyFunction = gradients.policy
        self.names = tuple(name for name in gradients.names if name not in left_out)
        self.forwards: list[Forward] = []
        self.error: Exception | None = None
        self._rules = gradients.rules
        self._generic = gradients.generic - left_out
        self._model, self._called = model, called
        self._arithmetic, self._rounding, self._temperature = arithmetic, rounding, temperature
        self._tried = False
        self._sizes = [self.policy.weights[name].numel() for name in self.names]
        self._handles: list[Any] = []
        self._busy = False  # with a pass of its own

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

    def gradients(self) -> Float[Tensor, "sequences parameters"]:
        """Of the loss through each sequence, forward after forward.

        **Raises:** whatever went wrong since `begin`.
        """
        self.end()
        if self.error is not None:
            raise self.error
        self._use_pulls()
        self.forwards = [forward for forward in self.forwards if forward.rows is not None]
        rows = [forward.rows for forward in self.forwards if forward.rows is not None]
        if not rows:
            raise ConfigError(
                "trainer",
                type(self._model).__name__,
                "its training calls no forward pass of the model that gives logits or "
                "log-probabilities with a gradient; watch answers by ProbeCallback",
            )
        return torch.cat(rows)

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.error is not None or self._busy:
            return
        try:
            self._use_pulls()
            device = self.policy.device
            on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
            forward = Forward(arguments, dict(named), (torch.get_rng_state(), on_gpu))
            positions = named.get("position_ids")
            if positions is not None and bool((positions.diff(dim=-1) < 0).any()):
                raise ConfigError(
                    "trainer.args.packing",
                    True,
                    "forces tell sequences apart by their rows; turn off packing and padding_free",
                )
            self.forwards.append(forward)
        except Exception as error:  # the trainer's own pass goes on
            self.error = error

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled() or self.error is not None or self._busy:
            return
        try:
            forward = self.forwards[-1]
            for name, value in _differentiable(output, len(forward.ids)).items():
                value.register_hook(partial(_keep, forward.pulls, name))
        except Exception as error:
            self.error = error

    def _use_pulls(self) -> None:
        """Takes the gradients of passes whose backward is done; lets go of their outputs'."""
        self._busy = True
        try:
            for forward in self.forwards:
                if forward.pulls and forward.rows is None:
                    forward.rows, forward.push = self._again(forward)
                    forward.pulls = {}
        finally:
            self._busy = False

    @torch.no_grad()
    def _again(
        self, forward: Forward
    ) -> tuple[Float[Tensor, "sequences parameters"], Float[Tensor, " sequences"]]:
        """Makes a pass again and splits its gradients by sequence."""
        count, policy = len(forward.ids), self.policy
        hidden: list[Tensor] = []
        with ExitStack() as stack:
            stack.enter_context(_replayed(self._model, forward.random, policy.device))
            stack.enter_context(self._arithmetic())
            base: Any = policy.causal.base_model
            keep = base.register_forward_hook(lambda *of: hidden.append(of[2][0].detach()))
            stack.callback(keep.remove)
            with recorded_calls(self._rules, set()) as calls, torch.enable_grad():
                output = self._model(*forward.arguments, **forward.named)
            given = _differentiable(output, count)
            outputs = [given[name] for name in forward.pulls]
            rows, named = self._by_rule(forward, calls, outputs)
            if "logits" not in forward.pulls:
                self._add_head(forward, hidden[0], named)
            if not self._tried:
                self._try(forward, outputs, named)
            self._by_autograd(forward, outputs, named)
        if "logits" in forward.pulls:
            return rows, _push_of_logits(forward)
        return rows, forward.pulls["log_probs"].float().sum(1).neg()

    def _by_rule(
        self, forward: Forward, calls: Sequence[Call], outputs: Sequence[Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The sequences' gradients through modules with a rule; also by parameter."""
        count, policy = len(forward.ids), self.policy
        rows = torch.zeros(count, sum(self._sizes), dtype=policy.dtype, device=policy.device)
        named = dict(zip(self.names, rows.split(self._sizes, dim=1), strict=True))
        deltas = torch.autograd.grad(
            outputs,
            [call.output for call in calls],
            list(forward.pulls.values()),
            retain_graph=True,
            allow_unused=True,
        )
        group = torch.arange(count, device=rows.device)
        for call, delta in zip(calls, deltas, strict=True):
            where = groups_of(call.output.shape[:-1], forward.ids.shape, group)
            if delta is not None and where is not None:
                value = call.input if call.rule.kind == "embedding" else call.input.to(rows)
                delta = delta.to(rows).flatten(0, -2)
                add_call(call.rule, value.detach(), delta, where, named)
        return rows, named

    def _try(self, forward: Forward, outputs: Sequence[Tensor], rows: dict[str, Tensor]) -> None:
        """Takes rules away whose sums are not autograd's."""
        self._tried = True
        trained = dict(self.policy.model.named_parameters())
        pulls = list(forward.pulls.values())
        truth = torch.autograd.grad(
            outputs,
            [trained[name] for name in self.names],
            pulls,
            retain_graph=True,
            materialize_grads=True,
        )
        least = 1e-6 * max(float(gradient.norm()) for gradient in truth)
        wrong = {
            name
            for name, gradient in zip(self.names, truth, strict=True)
            if float((rows[name].sum(0) - gradient.flatten()).norm())
            > self._rounding * max(float(rows[name].norm(dim=1).sum()), float(gradient.norm()))
            + least
        }
        lost = [rule for rule in self._rules if wrong & set(rule.names)]
        self._rules = tuple(rule for rule in self._rules if rule not in lost)
        wrong |= {name for rule in lost for name in rule.names if name in rows}
        self._generic |= wrong

    def _by_autograd(
        self, forward: Forward, outputs: Sequence[Tensor], rows: dict[str, Tensor]
    ) -> None:
        """The sequences' gradients by parameters without a rule, a backward pass each."""
        trained = dict(self.policy.model.named_parameters())
        leaves = {name: trained[name] for name in self.names if name in self._generic}
        for number in range(len(forward.ids) if leaves else 0):
            alone = [torch.zeros_like(pull) for pull in forward.pulls.values()]
            for own, pull in zip(alone, forward.pulls.values(), strict=True):
                own[number] = pull[number]
            for name, gradient in gradients(outputs, leaves, alone).items():
                rows[name][number] = gradient.flatten()

    def _add_head(self, forward: Forward, hidden: Tensor, rows: dict[str, Tensor]) -> None:
        """The head's gradients where its weight was used without a call of its module."""
        own = {id(parameter) for parameter in head_module(self.policy.causal).parameters()}
        leaves = {
            name: parameter
            for name, parameter in self.policy.model.named_parameters()
            if name in rows and name not in self._generic and id(parameter) in own
        }
        if not leaves:
            return
        logits = ResponseLogits(self.policy.model)
        labels = forward.named["labels"][:, 1:]
        for number, pull in enumerate(forward.pulls["log_probs"]):
            # Where there is no label, log π is a constant zero, whatever pulls at it.
            places = (labels[number] >= 0).nonzero()[:, 0]
            with torch.enable_grad():
                scores = logits.head(hidden[number, places]) / self._temperature
                label = labels[number, places, None]
                value = (pull[places] * scores.log_softmax(-1).gather(-1, label)[:, 0]).sum()
            for name, gradient in gradients(value, leaves).items():
                rows[name][number] += gradient.flatten()


def _keep(pulls: dict[str, Tensor], name: str, pull: Tensor | None) -> None:
    """A hook; compiled passes call it with None for what the loss does not use."""
    if pull is not None:
        pulls[name] = pull.detach()


def _differentiable(output: Any, sequences: int) -> dict[str, Tensor]:
    """The outputs with a row per sequence and a gradient, such as logits, by their names."""
    return {
        name: value
        for name in ("logits", "log_probs", "entropy")
        if isinstance(value := getattr(output, name, None), Tensor)
        and value.requires_grad
        and len(value) == sequences
    }


def _push_of_logits(forward: Forward) -> Float[Tensor, " sequences"]:
    """`−Σ_t ∂L/∂z_{t,y_{t+1}}` of each sequence, z_t the logits that predict token y_{t+1}."""
    pull = forward.pulls["logits"].float()
    following = forward.ids[:, 1:][:, -pull.shape[1] :]
    own = pull[:, -following.shape[1] - 1 : -1].gather(-1, following[..., None])
    return -own[..., 0].sum(1)


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
