"""What each sequence of a batch did, by the trainer's own forward and backward passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule
from dynolab.forces.function.weights import NamedTensors, gradients, shape_of
from dynolab.forces.ledger.grouped import GroupedGradients, add_call, groups_of
from dynolab.forces.map.output_gradients import Call, recorded_calls
from dynolab.forces.step.optimizers import Clipping, Removal
from dynolab.likelihood.token_logps import ResponseLogits


@dataclass
class Forward:
    """One forward pass with a gradient, and what the loss' derivative by its outputs was.

    `pulls` are by the outputs' names, [sequences, length, ...], in main memory.
    """

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    random: Any
    pulls: dict[str, Float[Tensor, "sequences _ ..."]] = field(default_factory=dict)

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
        return -self._by_following(self.pulls["logits"]).float().sum(1)

    def _by_following(
        self, pull: Float[Tensor, "sequences length vocabulary"]
    ) -> Float[Tensor, "sequences following"]:
        """The derivatives by the score of the token that follows, sequences × tokens but one."""
        following = self.ids[:, 1:][:, -pull.shape[1] :].cpu()
        at = pull[:, -following.shape[1] - 1 : -1]
        return at.gather(-1, following[..., None])[..., 0]

    def pulled(self) -> list[tuple[int, ...]]:
        """Places of the tokens on whose scores the loss depends, by sequence, without padding."""
        real = self._real().cpu()
        if "logits" in self.pulls:
            pull = self.pulls["logits"]
            moved = self._by_following(pull) != 0
            # Of a token that is certain, other tokens' scores tell. By sequence: a whole batch of
            # them is a copy of the logits.
            for row, by_score, present in zip(moved, pull, real, strict=True):
                still = ~row & present[-len(row) :]
                row[still] = by_score[-len(row) - 1 : -1][still].ne(0).any(-1)
        else:
            moved = self.pulls["log_probs"] != 0
            # Without a label, log π is a constant, whatever the loss does with it.
            moved &= self.named["labels"][:, -moved.shape[1] :].cpu() >= 0
        everywhere = torch.zeros_like(real)
        everywhere[:, -moved.shape[1] :] = moved
        return [
            tuple(row[present].nonzero()[:, 0].tolist())
            for row, present in zip(everywhere, real, strict=True)
        ]

    def alone(self, number: int) -> list[Outputs]:
        """The pulls at one sequence's outputs, zero at the others'."""
        pulls = [torch.zeros_like(pull) for pull in self.pulls.values()]
        for only, pull in zip(pulls, self.pulls.values(), strict=True):
            only[number] = pull[number]
        return pulls

    def sequences(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Every sequence's tokens without padding, and the number of those before the first label.

        Where nothing is labelled that number is 0.
        """
        labels = self.named.get("labels")
        labelled = torch.ones_like(self.ids) if labels is None else labels >= 0
        for ids, real, trained in zip(self.ids, self._real(), labelled.bool(), strict=True):
            first = int(trained[real].to(torch.uint8).argmax()) if bool(trained.any()) else 0
            yield tuple(ids[real].tolist()), first

    def _real(self) -> Bool[Tensor, "sequences length"]:
        """Where tokens are no padding."""
        mask = self.named.get("attention_mask")
        if mask is None or mask.dim() != 2:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return mask.bool()


Removals = Callable[[str], Removal]
"""What functionals would lack of a step by one parameter, by its name."""

RuleSignal = tuple[Rule, Shaped[Tensor, " ..."], Float[Tensor, "_ _"], Int[Tensor, " _"]]
"""A rule, its module's input, its signal at every position, and every position's sequence."""

Outputs = Float[Tensor, "sequences _ ..."]
"""Of a forward pass, or the loss' derivative by them: a row a sequence."""

GRADIENT_BYTES = 2**28
"""Of gradients of sequences by one parameter that are held at once; one sequence's at least."""


class SequenceLines(NamedTuple):
    """What each sequence of a batch did by one parameter, in nats.

    `lines`: what the step would have lacked without it; `shares`: its share of the step with clip
    factor and second moment frozen, which adds up to what the whole gradient did.
    """

    lines: Float[Tensor, "functionals sequences"]
    shares: Float[Tensor, "functionals sequences"]


class TrainerPasses:
    """What a step would have lacked without each sequence of a trainer's forward passes.

    Two hooks on the model keep what it is given and what the loss' derivative by its outputs is;
    they change nothing that passes through. After the step the same passes are made again, at the
    same weights and from the same random state. The gradients of some sequences are formed from a
    module's inputs and signals, by its rule, one parameter at a time; they are never held for all.
    Parameters without a rule have a backward pass per sequence. Gradient accumulation, the loss'
    scale and dropout are inside.

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
    def lines(
        self, removals: Removals, count: int, clipping: Clipping, clip_factor: float, scale: float
    ) -> dict[str, SequenceLines]:
        """The lines of every sequence on `count` functionals, by parameter.

        The model has the weights of the training's own passes. Removals are asked for in the same
        order on all ranks, whose passes are equally many.

        **Arguments:**

        - `removals`: the step by parameter, as whole tensors.
        - `clipping`, `clip_factor`: how the step clips, and what it multiplied its gradient by.
        - `scale`: what the gradients of these passes are divided by.
        """
        by_forward = []
        for forward in self.forwards:
            with self._made_again(forward) as again:
                factors = self._factors(again, removals, clipping, clip_factor, scale)
                zeros = factors.new_zeros(2, count, len(factors))
                lines_of = {name: SequenceLines(*zeros.clone()) for name in self.names}
                for group in again.groups:
                    removal = {name: removals(name) for name in group}
                    for name, some, rows in again.gradients(group):
                        rows /= scale
                        lines_of[name].lines[:, some] = removal[name].lines(rows, factors[some])
                        lines_of[name].shares[:, some] = removal[name].shares(rows)
                by_forward.append(lines_of)
        return {
            name: SequenceLines(
                torch.cat([lines_of[name].lines for lines_of in by_forward], 1),
                torch.cat([lines_of[name].shares for lines_of in by_forward], 1),
            )
            for name in self.names
        }

    def _factors(
        self,
        again: _Again,
        removals: Removals,
        clipping: Clipping,
        clip_factor: float,
        scale: float,
    ) -> Float[Tensor, " sequences"]:
        """What the step would have multiplied its gradient by without each sequence."""
        squares = torch.zeros(again.sequences, dtype=torch.float64, device=self.policy.device)
        if math.isinf(clipping.bound):
            return torch.full_like(squares, clip_factor)
        square = squares.new_zeros(())
        for group in again.groups:
            removal = {name: removals(name) for name in group}
            for part in removal.values():
                square += part.map.gradient.square().sum(dtype=torch.float64)
            for name, some, rows in again.gradients(group):
                squares[some] += removal[name].squares(rows / scale)
        return clipping.without(squares.sqrt(), square.sqrt(), clip_factor)

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

    @contextmanager
    def _made_again(self, forward: Forward) -> Iterator[_Again]:
        """One forward pass, made again: what it gives is there while this is open."""
        policy, hidden = self.policy, list[Float[Tensor, "sequences length width"]]()
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
            keeps_graph = bool(self._generic)
            signals: list[RuleSignal] = []
            for call, signal, where in self._signals(
                forward, calls, outputs, forward.pulls.values(), keeps_graph
            ):
                if call.rule in self._rules:
                    value, typed_signal = typed(call, signal, policy.dtype)
                    signals.append((call.rule, value, typed_signal, where))
            if "logits" not in forward.pulls:
                for number in range(len(forward.ids)):
                    for rule, value, signal in self._head(forward, hidden[0], number):
                        where = torch.full((len(signal),), number, device=signal.device)
                        signals.append((rule, value, signal, where))
            yield _Again(self, forward, outputs, signals)

    def _signals(
        self,
        forward: Forward,
        calls: Sequence[Call],
        outputs: Sequence[Outputs],
        pulls: Iterable[Outputs],
        keeps_graph: bool,
    ) -> list[tuple[Call, Float[Tensor, " ..."], Int[Tensor, " _"]]]:
        """Signal and every position's sequence of the calls that the loss depends on."""
        policy = self.policy
        if not calls:  # no parameter has a rule
            return []
        deltas = torch.autograd.grad(
            outputs,
            [call.output for call in calls],
            [pull.to(policy.device) for pull in pulls],
            retain_graph=keeps_graph,
            allow_unused=True,
        )
        group, signals = torch.arange(len(forward.ids), device=policy.device), []
        for call, delta in zip(calls, deltas, strict=True):
            where = groups_of(call.output.shape[:-1], forward.ids.shape, group)
            if delta is not None and where is not None:
                signals.append((call, delta, where))
        return signals

    def _try(
        self,
        forward: Forward,
        calls: Sequence[Call],
        outputs: Sequence[Outputs],
        hidden: Float[Tensor, "sequences length width"],
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
                middle = torch.ones(len(signal), dtype=torch.long, device=signal.device)
                add_call(rule, value, signal, middle, named)
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

    def _head(
        self, forward: Forward, hidden: Float[Tensor, "sequences length width"], number: int
    ) -> Iterator[tuple[Any, ...]]:
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


@dataclass(frozen=True)
class _Again:
    """A pass that was made again: the gradients of its sequences, parameter by parameter.

    `signals`: a rule, its module's input and signal, and every position's sequence, in the order of
    the sequences.
    """

    passes: TrainerPasses
    forward: Forward
    outputs: Sequence[Outputs]
    signals: Sequence[RuleSignal]

    @property
    def sequences(self) -> int:
        """How many there are."""
        return len(self.forward.ids)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """The parameters whose gradients are formed together, such as a module's weight and bias.

        Rules that share a tied weight are one group. They are the same on all ranks.
        """
        groups: list[set[str]] = []
        for rule in self.passes._rules:
            touching = [group for group in groups if group & set(rule.names)]
            groups = [group for group in groups if group not in touching]
            groups.append(set(rule.names).union(*touching))
        order = {name: place for place, name in enumerate(self.passes.names)}
        tuples = [tuple(sorted(group, key=order.__getitem__)) for group in groups]
        tuples += [(name,) for name in self.passes.names if name in self.passes._generic]
        return sorted(tuples, key=lambda group: order[group[0]])

    def gradients(
        self, group: Sequence[str]
    ) -> Iterator[tuple[str, slice, Float[Tensor, "some parameter"]]]:
        """Gradients of some sequences at a time by each parameter of a group.

        `GRADIENT_BYTES` bounds what is held at once.
        """
        parameters = dict(self.passes.policy.model.named_parameters())
        sizes = {name: shape_of(parameters[name]).numel() for name in group}
        dtype = self.passes.policy.dtype
        at_once = max(1, GRADIENT_BYTES // (sum(sizes.values()) * dtype.itemsize))
        for start in range(0, self.sequences, at_once):
            some = slice(start, min(start + at_once, self.sequences))
            count = some.stop - some.start
            rows = {
                name: torch.zeros(count, size, dtype=dtype, device=self.passes.policy.device)
                for name, size in sizes.items()
            }
            if group[0] in self.passes._generic:
                self._by_autograd(group[0], some, rows[group[0]])
            else:
                self._by_rule(some, rows)
            for name, gradients_of_some in rows.items():
                yield name, some, gradients_of_some

    def _by_rule(self, some: slice, rows: dict[str, Float[Tensor, "some _"]]) -> None:
        for rule, value, signal, where in self.signals:
            if not set(rule.names) & set(rows):
                continue
            inside = (where >= some.start) & (where < some.stop)
            positions = value.flatten() if rule.kind == "embedding" else value.flatten(0, -2)
            add_call(rule, positions[inside], signal[inside], where[inside] - some.start, rows)

    def _by_autograd(self, name: str, some: slice, rows: Float[Tensor, "some parameter"]) -> None:
        """A backward pass a sequence."""
        leaf = dict(self.passes.policy.model.named_parameters())[name]
        for number in range(some.start, some.stop):
            alone = [pull.to(rows.device) for pull in self.forward.alone(number)]
            made = gradients(self.outputs, {name: leaf}, alone)[name]
            rows[number - some.start] = made.flatten().to(rows)


def typed(
    call: Call, signal: Float[Tensor, "*shape d_out"], dtype: torch.dtype
) -> tuple[Shaped[Tensor, " ..."], Float[Tensor, "positions d_out"]]:
    """A call's input and its signal, positions × d_out, in a dtype; an embedding's input is ids."""
    value = call.input.detach()
    value = value if call.rule.kind == "embedding" else value.to(dtype)
    return value, signal.to(dtype).flatten(0, -2)


def _keep(pulls: NamedTensors, name: str, pull: Float[Tensor, " ..."] | None) -> None:
    """A hook; compiled passes call it with None for what the loss does not use."""
    if pull is not None:
        pulls[name] = pull.detach().cpu()


def _differentiable(output: Any, sequences: int) -> dict[str, Float[Tensor, "{sequences} ..."]]:
    """The outputs with a row per sequence and a gradient, such as logits, by their names."""
    return {
        name: value
        for name in ("logits", "log_probs", "entropy")
        if isinstance(value := getattr(output, name, None), Tensor)
        and value.requires_grad
        and len(value) == sequences
    }


@contextmanager
def _replayed(
    model: nn.Module,
    state: tuple[UInt8[Tensor, " _"], UInt8[Tensor, " _"] | None],
    device: torch.device,
) -> Iterator[None]:
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
