"""Gradients of a batch's sequences from the backward pass that a trainer makes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules, head_module, subspace
from dynolab.forces.ledger.grouped import add_call
from dynolab.forces.map.output_gradients import Call
from dynolab.likelihood.token_logps import ResponseLogits


@dataclass
class Forward:
    """One forward pass with a gradient.

    `rows` are its sequences' gradients, once the backward pass is done; `push`, per sequence, is
    minus the loss' derivative by its tokens' scores, summed: positive where it is pushed up. The
    last three are there where the output head is no module call (TRL's fused head): its weight's
    gradients follow from `pull`, the loss' derivative by `log π` of `labels`.
    """

    ids: Int[Tensor, "sequences length"]
    rows: Float[Tensor, "sequences parameters"]
    push: Float[Tensor, " sequences"]
    hidden: Tensor | None = None
    labels: Tensor | None = None
    pull: Tensor | None = None


class LiveGradients:
    """Hooks on a model that some trainer trains; they change nothing that passes through.

    A module's gradient through one sequence is a product of what the module was given and what
    came back to it (`Rule`), both of which the trainer's own passes make. Gradient accumulation,
    the loss' scale and dropout are inside.

    **Arguments:** `temperature`: of the log-probabilities that a fused head gives.
    """

    def __init__(self, policy: PolicyFunction, temperature: float = 1.0) -> None:
        trained = subspace(policy)
        self.policy, self._temperature = policy, temperature
        self.names = tuple(name for name in policy.weights if name in trained)
        self.forwards: list[Forward] = []
        self._rules = [rule for rule in find_rules(policy, trained) if rule.names]
        self._handles: list[Any] = []
        sizes = [policy.weights[name].numel() for name in self.names]
        ends = torch.tensor(sizes).cumsum(0).tolist()
        self._size = ends[-1]
        self._slices = {
            name: slice(end - size, end)
            for name, size, end in zip(self.names, sizes, ends, strict=True)
        }

    def begin(self) -> None:
        """Sets the hooks; forgets earlier forwards."""
        self.forwards = []
        causal: Any = self.policy.causal
        self._handles = [
            causal.register_forward_pre_hook(self._enter, with_kwargs=True),
            causal.register_forward_hook(self._leave, with_kwargs=True),
            causal.base_model.register_forward_hook(self._keep_hidden),
            *(rule.module.register_forward_hook(self._on_call(rule)) for rule in self._rules),
        ]

    def end(self) -> None:
        """Takes the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def gradients(self) -> Float[Tensor, "sequences parameters"]:
        """Of the loss through each sequence, forward after forward."""
        for forward in self.forwards:
            self._add_head(forward)
        return torch.cat([forward.rows for forward in self.forwards])

    def _enter(self, module: nn.Module, arguments: Any, named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled():
            return
        ids = named.get("input_ids", arguments[0] if arguments else None)
        if ids is None:
            raise ConfigError("trainer", "inputs without input_ids", "train on token ids")
        positions = named.get("position_ids")
        if positions is not None and bool((positions.diff(dim=-1) < 0).any()):
            raise ConfigError(
                "trainer.args.packing",
                True,
                "forces tell sequences apart by their rows; turn off packing and padding_free",
            )
        rows = torch.zeros(len(ids), self._size, dtype=self.policy.dtype, device=ids.device)
        self.forwards.append(Forward(ids.detach(), rows, rows.new_zeros(len(ids))))

    def _keep_hidden(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch.is_grad_enabled() and self.forwards:
            self.forwards[-1].hidden = output[0].detach()

    def _leave(self, module: nn.Module, arguments: Any, named: dict[str, Any], output: Any) -> None:
        if not torch.is_grad_enabled() or not self.forwards:
            return
        forward = self.forwards[-1]
        if named.get("fused_lm_head"):
            forward.labels = named["labels"][:, 1:]
            if output.entropy is not None and output.entropy.requires_grad:
                output.entropy.register_hook(_refuse_entropy)
            output.log_probs.register_hook(lambda pull: _keep_pull(forward, pull))
        elif output.logits.requires_grad:
            output.logits.register_hook(lambda pull: _add_push(forward, pull))

    def _on_call(self, rule: Rule) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            if not torch.is_grad_enabled() or not output.requires_grad or not self.forwards:
                return
            forward, call = self.forwards[-1], Call(rule, arguments[0].detach(), output, None)
            output.register_hook(lambda delta: self._add(forward, call, delta))

        return hook

    def _add(self, forward: Forward, call: Call, delta: Tensor) -> None:
        """Adds one call's gradients; what is called on no whole sequences is left out."""
        count = len(forward.rows)
        if delta.dim() != 3 or len(delta) != count:
            return
        where = torch.arange(count, device=delta.device).repeat_interleave(delta.shape[1])
        parts = {name: forward.rows[:, self._slices[name]] for name in call.rule.names}
        with torch.no_grad():
            add_call(call, delta.detach().flatten(0, 1), where, parts)

    def _add_head(self, forward: Forward) -> None:
        """The head's gradients where its weight was used without a call of its module."""
        if forward.pull is None or forward.hidden is None or forward.labels is None:
            return
        head = head_module(self.policy.causal)
        own = {id(parameter) for parameter in head.parameters()}
        leaves = {
            name: parameter
            for name, parameter in self.policy.model.named_parameters()
            if name in self._slices and id(parameter) in own
        }
        if not leaves:
            return
        logits = ResponseLogits(self.policy.model)
        for number, pull in enumerate(forward.pull):
            with torch.enable_grad():
                scores = logits.head(forward.hidden[number, : len(pull)]) / self._temperature
                label = forward.labels[number].clamp(min=0)[:, None]
                value = (pull * scores.log_softmax(-1).gather(-1, label)[:, 0]).sum()
            gradients = torch.autograd.grad(value, list(leaves.values()))
            for name, gradient in zip(leaves, gradients, strict=True):
                forward.rows[number, self._slices[name]] += gradient.flatten()


def _keep_pull(forward: Forward, pull: Tensor) -> None:
    """Where there is no label, log π is a constant zero, whatever pulls at it."""
    assert forward.labels is not None
    forward.pull = pull.detach() * (forward.labels >= 0)
    forward.push = -forward.pull.sum(1)


def _add_push(forward: Forward, pull: Tensor) -> None:
    """From the loss' derivative by the logits: of each position's next token."""
    following = forward.ids[:, 1:][:, -pull.shape[1] :]
    own = pull.detach()[:, -following.shape[1] - 1 : -1].gather(-1, following[..., None])
    forward.push = -own[..., 0].sum(1)


def _refuse_entropy(pull: Tensor) -> None:
    if bool(pull.any()):
        raise ConfigError("trainer.args", "a loss on entropy", "train on log-probabilities alone")
