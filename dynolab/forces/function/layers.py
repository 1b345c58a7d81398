"""The hidden state after any block of a transformer, and at its head: read, cut out, or moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import head_module


class Reached(Exception):
    """The layer is reached and nothing above it is needed."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__("layer reached")
        self.hidden = hidden


@contextmanager
def at_layer(policy: PolicyFunction, layer: int, see: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While it is open, every pass hands h_ℓ of all positions to `see` and goes on from its answer.

    A hook rather than `output_hidden_states`, whose last entry is the state after the final norm.

    **Arguments:** `layer`: ℓ blocks done: 0 is the first block's input (embeddings, with learned
    positions where the family adds them); the number of blocks, or −1, is the last block's
    output, before the final norm.
    """
    blocks = _blocks(policy.causal)
    number = _number(layer, len(blocks))
    if number == 0:
        handle = blocks[0].register_forward_pre_hook(
            lambda module, given: (see(given[0]), *given[1:])
        )
    else:
        handle = blocks[number - 1].register_forward_hook(lambda module, given, made: see(made))
    try:
        yield
    finally:
        handle.remove()


SeeHead = Callable[
    [Float[Tensor, "tokens features"], Float[Tensor, "tokens vocabulary"]],
    Float[Tensor, "tokens vocabulary"],
]


@contextmanager
def at_head(policy: PolicyFunction, see: SeeHead) -> Iterator[None]:
    """While it is open, every pass hands the head's input and output to `see`.

    The pass goes on from its answer, through all that the model does to its head's output.
    """

    def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        return see(given[0][0], made[0])[None]

    handle = head_module(policy.causal).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _blocks(causal: nn.Module) -> nn.ModuleList:
    """The list of decoder blocks, whatever its family calls it."""
    count = causal.config.num_hidden_layers  # type: ignore[union-attr]
    for child in causal.base_model.children():  # type: ignore[union-attr]
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    raise ConfigError(
        "model",
        type(causal).__name__,
        f"its base model holds no list of {count} blocks; give a decoder such as Llama, Qwen, "
        "Mistral, GPT-NeoX or GPT-2",
    )


def _number(layer: int, blocks: int) -> int:
    if not -blocks - 1 <= layer <= blocks:
        raise ConfigError("layer", layer, f"the model has {blocks} blocks: choose 0 to {blocks}")
    return layer % (blocks + 1)
