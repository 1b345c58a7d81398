"""The policy as a function of its weights, with its directional derivatives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain, islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.forces.function.checks import check_batch, check_model
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.views import View, dtype_preserving
from dynolab.forces.function.weights import NamedTensors, Weights, call_at, cast_like
from dynolab.likelihood.arithmetic import check_float32_products
from dynolab.likelihood.streamed import streamed, without_derivative
from dynolab.likelihood.token_logps import ResponseLogits, causal_model

PAD_ID = 0
"""Padding follows every response and is masked, so any id of the vocabulary works."""

CPU_TOKENS = 1_024
"""Padded tokens of one forward on a CPU."""

_TANGENT_BYTES = 2**28
_MOST_TANGENTS = 8

_log = logging.getLogger(__name__)


class PolicyFunction:
    """`θ ↦ log π_θ` of a batch's response tokens, and its derivative along directions of θ.

    Parameters are identified by object, so tied embeddings are one parameter used in both places.
    Weights that a call leaves out are the model's own. The model runs in eval mode without
    cache; fused attention kernels have no forward-mode derivative, so attention runs on torch's
    math kernel, which computes the same function.

    **Arguments:**

    - `model`: a causal language model of transformers, plain or with LoRA adapters (peft); it is
      left unchanged.
    - `dtype`: of weights and arithmetic. Under float64, norms and attention that would fall back
      to float32 keep their dtype. Under float32, weights that `keep_frozen_narrow` left in bf16
      stay there.
    - `derivatives`: its gradients must be derivatives; DoRA's are not, though training uses them,
      and quantised weights, which are left to the model, have none in forward mode.
    - `device`: where passes run; default: where the model is. Elsewhere weights come to it module
      by module (`streamed`), so that it never holds the whole model. `home` is where weights,
      directions and gradients stay.

    **Raises:** `ConfigError` for a model that `checks.check_model` rejects, for float32 products
    that torch may round (TF32), and at the first derivative for a model whose derivatives are not
    those of its own forward (`derivatives_of`).
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype = torch.float32,
        *,
        derivatives: bool = True,
        device: torch.device | None = None,
    ) -> None:
        check_model(model, derivatives=derivatives)
        check_float32_products()
        self.model, self.dtype = model, dtype
        self.causal = causal_model(model)
        self._logits = ResponseLogits(model)
        frozen, named = without_derivative(model), dict(model.named_parameters())
        self.frozen = {name for name, parameter in named.items() if id(parameter) in frozen}
        narrow = self.frozen if dtype == torch.float32 else set()
        self.weights: NamedTensors = {
            name: parameter.detach().to(parameter.dtype if name in narrow else dtype)
            for name, parameter in named.items()
            if parameter.is_floating_point()
        }
        self.home = next(iter(self.weights.values())).device
        self.device = self.home if device is None else device
        _log.info("force engine: attention on SDPA's math kernel (forward-mode derivatives)")

    def cast(self, weights: Weights) -> NamedTensors:
        """Weights at the policy's home in its dtype; rejects unknown names and other shapes."""
        return cast_like(self.weights, weights)

    def batch(self, sequences: Sequence[Encoded]) -> TokenBatch:
        """Sequences as one batch on the policy's device."""
        return collate(sequences, PAD_ID).to(self.device)

    def logits(
        self, weights: Weights, batch: TokenBatch, *, forward_mode: bool = True
    ) -> Float[Tensor, "tokens vocabulary"]:
        """Logits that predict each response token at the given weights.

        **Arguments:** `forward_mode`: they may get a forward-mode derivative, which attention's
        quickest kernels have not.
        """
        named = {f"model.{name}": w for name, w in {**self.weights, **weights}.items()}
        with self._fetching(), self.differentiable(forward_mode=forward_mode):
            return call_at(self._logits, named, batch)

    def logps(self, weights: Weights, batch: TokenBatch) -> Float[Tensor, " tokens"]:
        """`log π(y_l | x, y_<l)` of every response token at the given weights, in nats."""
        return self.observed(weights, batch)

    def _tempered_logits(
        self, weights: Weights, batch: TokenBatch, *, forward_mode: bool = True
    ) -> Float[Tensor, "tokens vocabulary"]:
        """Logits at the batch's temperature."""
        logits = self.logits(weights, batch, forward_mode=forward_mode)
        return logits if batch.temperature == 1 else logits / batch.temperature

    def observed(
        self,
        weights: Weights,
        batch: TokenBatch,
        view: View | None = None,
        *,
        forward_mode: bool = True,
    ) -> Float[Tensor, "tokens ..."]:
        """log π of what is observed: the realised tokens [tokens], or a view's [tokens, k].

        **Arguments:** `forward_mode`: as of `logits`.
        """
        logits = self._tempered_logits(weights, batch, forward_mode=forward_mode)
        if view is None:
            return View.realised(batch).logps(logits).squeeze(-1)
        return view.logps(logits)

    @torch.no_grad()
    def change_along(
        self,
        at: Weights,
        directions: Iterable[Weights],
        batch: TokenBatch,
        *,
        view: View | None = None,
    ) -> Float[Tensor, "directions tokens ..."]:
        """`∂ log π/∂θ · d` at every response position for each direction d.

        A forward-mode derivative of the logits, multiplied by the view's A.

        **Arguments:**

        - `at`: where the derivative is taken.
        - `directions`: changes of the weights; a parameter missing in one does not move there.
        - `view`: the tokens observed at every position; default: the realised one.

        **Returns:** first-order change of `log π` in nats, one entry per direction, with a last
        axis over the view's tokens where there is a view.
        """
        check_batch(batch, self.causal)
        observed_view = View.realised(batch) if view is None else view
        # Tangents of the logits, and A times them, are tokens × vocabulary for each direction.
        vocabulary = self.causal.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
        logits_bytes = max(1, len(batch.token)) * vocabulary * self.dtype.itemsize
        fitting = _TANGENT_BYTES // (4 * logits_bytes)
        changes = [
            observed_view.changes(logits, moved)
            for logits, moved in self._linearised(
                lambda weights: self._tempered_logits(weights, batch),
                at,
                directions,
                together=max(1, min(self.tangents_together, fitting)),
            )
        ]
        change = _joined(changes) if changes else self.observed(at, batch, observed_view)[None][:0]
        return change.squeeze(-1) if view is None else change

    @torch.no_grad()
    def derivatives(
        self,
        function: Callable[[Weights], Float[Tensor, " ..."]],
        at: Weights,
        directions: Iterable[Weights],
    ) -> Float[Tensor, "directions ..."]:
        """`∂f/∂θ · d` of any function of the weights for each direction d (forward-mode JVP).

        Groups of `tangents_together` directions share one primal pass; they may come from a
        generator and are released after their pass.
        """
        linearised = self._linearised(function, at, directions, self.tangents_together)
        rows = [moved for _, moved in linearised]
        return _joined(rows) if rows else function(self.cast(at))[None][:0]

    def _linearised(
        self,
        function: Callable[[Weights], Float[Tensor, " ..."]],
        at: Weights,
        directions: Iterable[Weights],
        together: int,
    ) -> Iterator[tuple[Float[Tensor, "*outputs"], Float[Tensor, " some *outputs"]]]:
        """Yields the function's value and its derivatives along `together` directions at a time."""
        derivatives_of(self).require("forward")
        at = self.cast(at)
        remaining: Iterator[Weights] = iter(directions)
        while group := list(islice(remaining, together)):
            yield self._jvps(function, at, [self.cast(direction) for direction in group])
            group.clear()  # before the next are made

    @property
    def batch_tokens(self) -> int:
        """Sequences × padded length of one forward: what a CPU's caches hold, more on a GPU."""
        if self.device.type == "cpu":
            return CPU_TOKENS
        text = self.causal.config.get_text_config()  # type: ignore[union-attr, operator]
        return gpu_tokens(text.num_hidden_layers, text.hidden_size)

    @property
    def tangents_together(self) -> int:
        """Directions that share one pass: as many as a bound on their memory allows."""
        size = sum(w.numel() * w.element_size() for w in self.weights.values())
        return max(1, min(_MOST_TANGENTS, _TANGENT_BYTES // size))

    def pushforward(
        self,
        function: Callable[[Weights], Float[Tensor, " ..."]],
        at: Weights,
        moving: Collection[str],
    ) -> Callable[[Weights], tuple[Float[Tensor, "*outputs"], Float[Tensor, "*outputs"]]]:
        """A function's value and its derivative along one direction of the parameters `moving`."""
        primal = {name: at.get(name, self.weights[name]) for name in moving}
        fixed = {name: w for name, w in at.items() if name not in primal}

        def along(tangent: Weights) -> tuple[Float[Tensor, "*outputs"], Float[Tensor, "*outputs"]]:
            direction = {name: tangent[name] for name in primal}
            outputs = jvp(lambda w: function({**fixed, **w}), (primal,), (direction,))
            return outputs[0], outputs[1]

        return along

    def _jvps(
        self,
        function: Callable[[Weights], Float[Tensor, " ..."]],
        at: Weights,
        directions: Sequence[Weights],
    ) -> tuple[Float[Tensor, "*outputs"], Float[Tensor, " directions *outputs"]]:
        moving = set(chain.from_iterable(directions))
        if not moving:
            value = function(at)
            return value, torch.zeros_like(value).expand(len(directions), *value.shape)
        along = self.pushforward(function, at, moving)
        if len(directions) == 1:  # as it is: a copy would take as much again as the weights
            value, change = along(directions[0])
            return value, change[None]
        tangents = {
            name: torch.stack(
                [
                    direction.get(name, torch.zeros_like(self.weights[name]))
                    for direction in directions
                ]
            )
            for name in moving
        }
        return vmap(along, out_dims=(None, 0))(tangents)  # type: ignore[arg-type]

    def _fetching(self) -> AbstractContextManager[None]:
        return nullcontext() if self.device == self.home else streamed(self.model, self.device)

    @contextmanager
    def differentiable(self, *, forward_mode: bool = True) -> Iterator[None]:
        """Eval mode, and attention that has a derivative, of `forward_mode` too; restores both.

        On GPUs attention is always that one: the quickest's backward is not deterministic there.
        """
        training = [module for module in self.model.modules() if module.training]
        # Gradient checkpointing's hook on the embeddings, which functorch cannot transform.
        hooked = bool(getattr(self.causal, "_require_grads_hooks", None))
        if hooked:
            self.causal.disable_input_require_grads()  # type: ignore[operator]
        if training:  # to say so to every module takes longer than its pass in a small model
            self.model.eval()
        exact = dtype_preserving(self.model) if self.dtype == torch.float64 else nullcontext()
        try:
            plain = forward_mode or self.device.type != "cpu"
            with (
                sdpa_kernel(SDPBackend.MATH) if plain else nullcontext(),
                _plain_kernels(self.causal),
                exact,
            ):
                yield
        finally:
            for module in training:
                module.training = True
            if hooked:
                self.causal.enable_input_require_grads()  # type: ignore[operator]


def gpu_tokens(layers: int, width: int) -> int:
    """Padded tokens of one forward on a GPU, fewer of a large model.

    A backward keeps some 80 bytes of each of `layers × width` numbers of a token, 11 GB in all. By
    sizes alone, as a measured number would make other bits in the next run.
    """
    return max(512, min(16_384, 2**27 // (layers * width)))


def _joined(rows: Sequence[Float[Tensor, "_ ..."]]) -> Float[Tensor, "_ ..."]:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


@contextmanager
def _plain_kernels(causal: Any) -> Iterator[None]:
    """Uses implementations of attention and experts that have a forward-mode derivative, if any.

    They compute the same function; the model's own are restored.
    """
    attention = getattr(causal.config, "_attn_implementation", "sdpa")
    experts = getattr(causal.config, "_experts_implementation", None)
    swap_attention = attention not in ("sdpa", "eager")
    swap_experts = experts not in (None, "eager") and causal._can_set_experts_implementation()
    if swap_attention:
        plain = "sdpa" if causal._supports_sdpa else "eager"
        _log.warning(
            "force engine: attention %s has no forward-mode derivative; %s takes its place",
            attention,
            plain,
        )
        causal.set_attn_implementation(plain)
    if swap_experts:
        causal.set_experts_implementation("eager")
    try:
        yield
    finally:
        if swap_experts:
            causal.set_experts_implementation(experts)
        if swap_attention:
            causal.set_attn_implementation(attention)
