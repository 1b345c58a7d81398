"""Reads or replaces the hidden state after any block of a transformer, and at its head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from jaxtyping import Float
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import head_module


class Reached(Exception):
    """Stops a forward pass at a layer above which nothing is needed."""


@contextmanager
def at_layers(
    policy: PolicyFunction, layers: Sequence[int], see: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """While open, every pass calls `see` on h_ℓ of all positions and continues with its result.

    A hook rather than `output_hidden_states`, whose last entry is the state after the final norm.

    **Arguments:** `layers`: ℓ, the blocks already run: 0 is the first block's input (embeddings,
    with learned positions if the family adds them); the number of blocks, or −1, is the last
    block's output, before the final norm.
    """
    blocks = _listed(policy.causal)
    with ExitStack() as stack:
        for layer in layers:
            if not -len(blocks) - 1 <= layer <= len(blocks):
                remedy = f"the model has {len(blocks)} blocks: choose 0 to {len(blocks)}"
                raise ConfigError("layer", layer, remedy)
            number = layer % (len(blocks) + 1)
            if number == 0:
                handle = blocks[0].register_forward_pre_hook(
                    lambda module, inputs: (see(inputs[0]), *inputs[1:])
                )
            else:
                handle = blocks[number - 1].register_forward_hook(
                    lambda module, inputs, output: (
                        (see(output[0]), *output[1:]) if isinstance(output, tuple) else see(output)
                    )
                )
            stack.callback(handle.remove)
        yield


SeeHead = Callable[
    [Float[Tensor, "tokens features"], Float[Tensor, "tokens vocabulary"]],
    Float[Tensor, "tokens vocabulary"],
]


@contextmanager
def at_head(policy: PolicyFunction, see: SeeHead) -> Iterator[None]:
    """While open, every pass calls `see` on the head's input and output.

    The pass continues with its result, through all that the model does to its head's output.
    """

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return see(inputs[0][0], output[0])[None]

    handle = head_module(policy.causal).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def blocks_of(causal: nn.Module) -> nn.ModuleList | None:
    """The list of decoder blocks, whatever its family calls it; None if it has no such list."""
    count = causal.config.num_hidden_layers  # type: ignore[union-attr]
    for child in causal.base_model.children():  # type: ignore[union-attr]
        if isinstance(child, nn.ModuleList) and len(child) == count:
            return child
    return None


def _listed(causal: nn.Module) -> nn.ModuleList:
    blocks = blocks_of(causal)
    if blocks is None:
        raise ConfigError(
            "model",
            type(causal).__name__,
            "its base model has no list of its blocks; give a decoder such as Llama, Qwen, "
            "Mistral, GPT-NeoX or GPT-2",
        )
    return blocks


def last_layers(policy: PolicyFunction, count: int) -> set[str]:
    """Parameters of the last blocks and of what follows them: the final norm and the head.

    A head that shares the embedding's table is left out: the table acts before all blocks, too.

    **Raises:** `ConfigError` for a model without a list of blocks, or with fewer.
    """
    causal = policy.causal
    blocks = _listed(causal)
    if not 1 <= count <= len(blocks):
        raise ConfigError("last_layers", count, f"the model has {len(blocks)}: choose 1 or more")
    children = list(causal.base_model.children())  # type: ignore[union-attr]
    after = children[next(n for n, child in enumerate(children) if child is blocks) + 1 :]
    embedding = causal.get_input_embeddings()  # type: ignore[operator]
    before = {id(parameter) for parameter in embedding.parameters()}
    modules = [*blocks[-count:], *after, head_module(causal)]
    wanted = {id(p) for module in modules for p in module.parameters()} - before
    return {name for name, p in policy.model.named_parameters() if id(p) in wanted}
