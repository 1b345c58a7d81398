"""The modules of a model: which parameters act through which, and hooks on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import is_rms_norm
from dynolab.forces.function.weights import shape_of

Kind = Literal["linear", "embedding", "norm"]


@dataclass(frozen=True)
class Rule:
    """A module whose parameters' gradients follow from its input a and its signal δ = ∂/∂output.

    - linear: ∂/∂W = Σ_s δ_s a_sᵀ and ∂/∂b = Σ_s δ_s; `transposed` where W is stored
      d_in × d_out (GPT-2's Conv1D), `head` where it makes the logits, one row per token;
    - embedding: row v of ∂/∂W is Σ_{s: x_s = v} δ_s, times the `scale` of what is looked up;
    - norm: ∂/∂w = Σ_s δ_s ⊙ n_s and ∂/∂b = Σ_s δ_s, n the normalised input before scaling.

    `weight` and `bias` are parameter names, None where the module has none or it is not wanted.
    `local`: a token's signal is nonzero only at the position that predicts it.
    """

    module: nn.Module
    kind: Kind
    weight: str | None
    bias: str | None
    transposed: bool = False
    head: bool = False
    local: bool = False
    scale: float = 1.0

    def looked_up(self, signal: Float[Tensor, "*positions d"]) -> Float[Tensor, "*positions d"]:
        """The signal at an embedding's rows."""
        return signal if self.scale == 1 else signal * self.scale

    @property
    def sizes(self) -> tuple[int, int]:
        """d_in and d_out."""
        weight = getattr(self.module, "weight", None)
        assert isinstance(weight, Tensor)
        shape = shape_of(weight)
        if len(shape) == 1:
            return shape[0], shape[0]
        rows, columns = shape
        as_stored = self.kind == "embedding" or self.transposed
        return (rows, columns) if as_stored else (columns, rows)

    @property
    def names(self) -> list[str]:
        """The parameters that the rule covers."""
        return [name for name in (self.weight, self.bias) if name is not None]


def find_rules(policy: PolicyFunction, moving: set[str]) -> list[Rule]:
    """Rules for the modules of known kinds that hold wanted parameters.

    Parameters are identified by object: a tied head and embedding are two rules on one name. The
    head has a rule even if none of its parameters is wanted, because signals start at its input.
    """
    names = {id(p): name for name, p in policy.model.named_parameters()}

    def name_of(parameter: object) -> str | None:
        name = names.get(id(parameter))
        return name if name in moving else None

    head = head_module(policy.causal)
    rules = []
    for module in policy.model.modules():
        kind = _kind(module)
        if kind is None:
            continue
        weight, bias = name_of(module.weight), name_of(getattr(module, "bias", None))
        if weight or bias or module is head:
            transposed = type(module).__name__ == "Conv1D"
            scale = getattr(module, "scalar_embed_scale", getattr(module, "embed_scale", 1.0))
            is_head = module is head
            rules.append(Rule(module, kind, weight, bias, transposed, is_head, is_head, scale))
    return rules


def subspace(policy: PolicyFunction) -> set[str]:
    """Parameters that move: those that require a gradient (adapters alone under LoRA).

    If none does, as in a model loaded for inspection, all move.

    **Raises:** `ConfigError` for frozen adapters: no training moves them with the rest.
    """
    named = list(policy.model.named_parameters())
    trained = {name for name, p in named if p.requires_grad}
    if not trained and any(hasattr(module, "merged_adapters") for module in policy.model.modules()):
        raise ConfigError(
            "model",
            "its adapters do not train",
            "load them with is_trainable=True, or call merge_and_unload() to move all weights",
        )
    return trained or {name for name, _ in named}


def head_module(causal: nn.Module) -> nn.Module:
    """The module that makes the logits; if peft trains a full copy of it, the active copy."""
    head = causal.get_output_embeddings()  # type: ignore[operator]
    copies = getattr(head, "modules_to_save", None)
    return copies[head.active_adapters[0]] if copies else head


def _kind(module: nn.Module) -> Kind | None:
    if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if (isinstance(module, nn.LayerNorm) or is_rms_norm(module)) and isinstance(
        getattr(module, "weight", None), torch.Tensor
    ):
        return "norm"
    return None


Hidden = Float[Tensor, "rows length width"]
"""Hidden states of a padded batch, between two blocks."""


class Reached(Exception):
    """Stops a forward pass at a layer above which nothing is needed."""


@contextmanager
def at_layers(
    policy: PolicyFunction,
    layers: Sequence[int],
    see: Callable[[Hidden], Hidden],
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

    def hook(
        module: nn.Module,
        inputs: tuple[Float[Tensor, "1 tokens features"], ...],
        output: Float[Tensor, "1 tokens vocabulary"],
    ) -> Float[Tensor, "1 tokens vocabulary"]:
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
    parameters = nn.ModuleList(modules).parameters()
    last = {id(parameter) for parameter in parameters} - before
    return {name for name, p in policy.model.named_parameters() if id(p) in last}
