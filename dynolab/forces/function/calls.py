"""Records the calls of modules in a forward pass, for derivatives by what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dynolab.forces.function.rules import Rule


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a module; `leaf` stands in for its input, where one does."""

    rule: Rule
    input: Shaped[Tensor, "*shape"]
    output: Float[Tensor, " ..."]
    leaf: Float[Tensor, "*shape"] | None


@contextmanager
def recorded_calls(
    rules: Sequence[Rule], cut: set[int], take: Callable[[Call], None] | None = None
) -> Iterator[list[Call]]:
    """Records every call of the rules' modules, with outputs that require a gradient.

    Modules in `cut` (by identity) get a leaf in place of their input. The head's input requires a
    gradient, too, where nothing before it does.

    **Arguments:** `take`: gets each call in place of the list, which then holds no outputs.
    """
    calls: list[Call] = []
    take = take or calls.append
    leaves: dict[int, tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]] = {}

    def stand_in(
        module: nn.Module, arguments: tuple[Shaped[Tensor, " ..."], ...]
    ) -> tuple[Shaped[Tensor, " ..."], ...]:
        leaf = arguments[0].detach().requires_grad_()
        leaves[id(module)] = arguments[0], leaf
        return (leaf, *arguments[1:])

    def begin_at_the_input(
        module: nn.Module, arguments: tuple[Shaped[Tensor, " ..."], ...]
    ) -> None:
        if not arguments[0].requires_grad:
            arguments[0].requires_grad_()

    def record(
        rule: Rule,
        module: nn.Module,
        arguments: tuple[Shaped[Tensor, " ..."], ...],
        output: Float[Tensor, " ..."],
    ) -> None:
        # Weights are constants here, so the graph begins at the embeddings' outputs.
        if not output.requires_grad:
            output.requires_grad_()
        value, leaf = leaves.get(id(module), (arguments[0], None))
        take(Call(rule, value, output, leaf))

    with ExitStack() as hooks:
        for rule in rules:
            module = rule.module
            if rule.head:
                hooks.callback(module.register_forward_pre_hook(begin_at_the_input).remove)
            if id(module) in cut:
                hooks.callback(module.register_forward_pre_hook(stand_in).remove)
            hooks.callback(module.register_forward_hook(partial(record, rule)).remove)
        yield calls
