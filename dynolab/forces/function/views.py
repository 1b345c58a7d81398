"""What is observed at every response position, and modes for float64 and second derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError


def log_softmax(
    logits: Float[Tensor, "*positions vocabulary"],
) -> Float[Tensor, "*positions vocabulary"]:
    """`log π` of all tokens, in nats, the likeliest token's as `logps_of` computes it."""
    top = logits.argmax(-1, keepdim=True)
    return torch.log_softmax(logits, dim=-1).scatter(-1, top, logps_of(logits, top))


def logps_of(
    logits: Float[Tensor, "*positions vocabulary"], token: Int[Tensor, "*positions 1"]
) -> Float[Tensor, "*positions 1"]:
    """`log π_v = log σ(z_v − log Σ_{u≠v} e^{z_u})` of one token at each position, in nats.

    torch's derivative `e_v − π` of a log-softmax computes entry v as 1 − π_v: near π_v = 1 that
    entry, half of a force, rounds away. Here it is σ of the log-odds against v, as exact as the
    logits. It also reads the vocabulary less often.
    """
    below = logits - logits.detach().amax(-1, keepdim=True)  # small sums keep their digits
    token_logit = below.gather(-1, token)
    others = below.scatter(-1, token, float("-inf")).logsumexp(-1, keepdim=True)
    return F.logsigmoid(token_logit - others)


def dtype_preserving(model: nn.Module) -> AbstractContextManager[Any]:
    """While open, nothing that depends on the model's weights is rounded to float32.

    Norms, softmax and soft caps in transformers compute in float32 whatever their input. Float32
    inside a float64 network leaves errors of 1e-9 to 1e-7 in its derivatives. The model's buffers
    are rounded as in its own forward: the float32 angles of rotary positions are constants of the
    function, and other angles would change the function.
    """
    return _KeepFloat64(model)


_NARROWING = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class _KeepFloat64(TorchFunctionMode):
    """Makes torch functions on float64 tensors return float64, whatever dtype is requested."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._buffers = {id(buffer) for buffer in model.buffers()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Most calls read an attribute: there is no dtype to replace.
        if len(args) == 1 and not kwargs and func not in _NARROWING:
            return func(*args)
        first = args[0] if args else None
        if isinstance(first, Tensor) and first.dtype == torch.float64 and not self._holds(first):
            if func in _NARROWING:
                return first
            args = tuple(_not_narrower(value) for value in args)
            kwargs = {name: _not_narrower(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _holds(self, tensor: Shaped[Tensor, " ..."]) -> bool:
        """Whether the tensor is a buffer of the model, or a view of one."""
        return id(tensor) in self._buffers or id(tensor._base) in self._buffers


def _not_narrower(value: Any) -> Any:
    narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if narrow else value


def twice_differentiable() -> AbstractContextManager[Any]:
    """While open, functions can be differentiated forward twice.

    torch's rule for a layer norm's derivative drops a term when it is differentiated again, and
    gives another number without a word (pytorch issue 196700).
    """
    return _PlainLayerNorm()


class _PlainLayerNorm(TorchFunctionMode):
    """Computes layer norms by elementary operations."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (F.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _layer_norm(
    input: Float[Tensor, "*shape"],
    normalized_shape: Sequence[int],
    weight: Float[Tensor, " ..."] | None = None,
    bias: Float[Tensor, " ..."] | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Float[Tensor, "*shape"]:
    last = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(last, keepdim=True)
    value = centred * (centred.square().mean(last, keepdim=True) + eps).rsqrt()
    if weight is not None:
        value = value * weight
    return value if bias is None else value + bias


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a module is one of transformers' RMSNorm classes (one per family) or torch's."""
    return type(module).__name__.endswith("RMSNorm")


@dataclass(frozen=True)
class View:
    """The tokens whose `log π(v | x, y_<l)` is observed at each position of a response.

    `tokens` is the same before and after a change: the likeliest token is chosen once, from given
    logits, and then held fixed. None means the whole vocabulary.
    """

    tokens: Int[Tensor, "tokens k"] | None

    @classmethod
    def realised(cls, batch: TokenBatch) -> View:
        """The answer's own token at every position, k = 1."""
        return cls(batch.token[:, None])

    @classmethod
    def argmax(cls, logits: Float[Tensor, "tokens vocabulary"]) -> View:
        """The likeliest token at every position, k = 1."""
        return cls(logits.detach().topk(1, dim=-1).indices)

    @classmethod
    def vocabulary(cls) -> View:
        """Every token of the vocabulary: k = V."""
        return cls(None)

    def beside(self, other: View) -> View:
        """Both views' tokens, this one's first."""
        if self.tokens is None or other.tokens is None:
            raise ConfigError("view", "vocabulary", "it holds every token already; use it alone")
        return View(torch.cat([self.tokens, other.tokens], dim=-1))

    def logps(self, logits: Float[Tensor, "tokens vocabulary"]) -> Float[Tensor, "tokens k"]:
        """`log π` of the observed tokens, in nats."""
        if self.tokens is not None and self.tokens.shape[-1] == 1:
            return logps_of(logits, self.tokens)
        logps = log_softmax(logits)
        return logps if self.tokens is None else logps.gather(-1, self.tokens)

    def changes(
        self,
        logits: Float[Tensor, "tokens vocabulary"],
        moved: Float[Tensor, "... tokens vocabulary"],
    ) -> Float[Tensor, "... tokens k"]:
        """`A dz = dz − (π·dz) 1` of the observed tokens, in nats, for logits that move by dz.

        O(V): the V×V matrix A = I − 1πᵀ is never formed. As A1 = 0, dz is taken relative to one
        token: the observed one, or the likeliest if there are several. The other entries then
        keep their digits as π nears one.
        """
        several = self.tokens is None or self.tokens.shape[-1] > 1
        anchor = logits.argmax(-1, keepdim=True) if several else self.tokens
        assert anchor is not None
        relative = moved - moved.gather(-1, anchor.expand(*moved.shape[:-1], 1))
        mean = torch.einsum("tv,...tv->...t", torch.softmax(logits, dim=-1), relative)
        if self.tokens is not None:
            relative = relative.gather(-1, self.tokens.expand(*moved.shape[:-1], -1))
        return relative - mean[..., None]
