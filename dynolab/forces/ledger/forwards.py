"""A trainer's forward passes as it makes them, and the loss' derivatives by their outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor, nn

from dynolab.errors import ConfigError
from dynolab.forces.function.weights import NamedTensors

Outputs = Float[Tensor, "sequences _ ..."]
"""What a forward pass gives, or the loss' derivative by that: a row a sequence."""

Draws = tuple[UInt8[Tensor, " _"], UInt8[Tensor, " _"] | None]
"""torch's random states, from which dropout is drawn: of the CPU and, where there is one, a GPU."""


def draws_of(device: torch.device) -> Draws:
    """The states as they are."""
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_gpu


def draw_again(draws: Draws, device: torch.device) -> None:
    """Sets the states to earlier ones."""
    on_cpu, on_gpu = draws
    torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu, device)


@dataclass
class Forward:
    """One forward pass with a gradient, and what the loss' derivative by its outputs was.

    A pull is the loss' derivative by an output, [sequences, length, ...]; `pulls` has them by the
    outputs' names, in main memory.
    """

    arguments: tuple[Any, ...]
    named: dict[str, Any]
    draws: Draws
    pulls: dict[str, Outputs] = field(default_factory=dict)

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
        if "logits" not in self.pulls:  # a fused head gives log π of the tokens themselves
            return self.pulls["log_probs"].float().sum(1).neg()
        return -self._by_following(self.pulls["logits"]).float().sum(1)

    def _by_following(
        self, pull: Float[Tensor, "sequences length vocabulary"]
    ) -> Float[Tensor, "sequences following"]:
        """The derivatives by the score of the token that follows, sequences × tokens but one.

        Position t has the scores of token t + 1: the first token has none, the last position none
        to score.
        """
        following = self.ids[:, 1:][:, -pull.shape[1] :].cpu()
        at = pull[:, -following.shape[1] - 1 : -1]
        return at.gather(-1, following[..., None])[..., 0]

    def pulled(self) -> list[tuple[int, ...]]:
        """Places of the tokens on whose scores the loss depends, by sequence, without padding."""
        real = self._real().cpu()
        if "logits" in self.pulls:
            pull = self.pulls["logits"]
            used = self._by_following(pull) != 0
            # A token whose π has rounded to 1 has no derivative by its score, `c (π − 1)`, though
            # the loss depends on it; then those by other tokens' scores may tell. Sequence by
            # sequence: for the batch at once they would be a copy of the logits.
            for used_row, pull_row, real_row in zip(used, pull, real, strict=True):
                scores = pull_row[-len(used_row) - 1 : -1]
                unclear = ~used_row & real_row[-len(used_row) :]
                used_row[unclear] = scores[unclear].ne(0).any(-1)
        else:
            used = self.pulls["log_probs"] != 0
            # Without a label, log π is a constant, whatever the loss does with it.
            used &= self.named["labels"][:, -used.shape[1] :].cpu() >= 0
        # Outputs are of the last tokens of each row; from here on all tokens are counted.
        of_all_tokens = torch.zeros_like(real)
        of_all_tokens[:, -used.shape[1] :] = used
        places = []
        for used_row, real_row in zip(of_all_tokens, real, strict=True):
            places.append(tuple(used_row[real_row].nonzero()[:, 0].tolist()))
        return places

    def alone(self, number: int) -> list[Outputs]:
        """The pulls at one sequence's outputs, zero at the others'."""
        pulls = []
        for pull in self.pulls.values():
            only = torch.zeros_like(pull)
            only[number] = pull[number]
            pulls.append(only)
        return pulls

    def sequences(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Every sequence's tokens without padding, and the number of those before the first label.

        Where nothing is labelled that number is 0.
        """
        labels = self.named.get("labels")
        labelled = torch.ones_like(self.ids) if labels is None else labels >= 0
        for ids, real, trained in zip(self.ids, self._real(), labelled.bool(), strict=True):
            # argmax is the first of the largest ones, and not of booleans.
            first = int(trained[real].to(torch.uint8).argmax()) if bool(trained.any()) else 0
            yield tuple(ids[real].tolist()), first

    def _real(self) -> Bool[Tensor, "sequences length"]:
        """Where tokens are no padding."""
        mask = self.named.get("attention_mask")
        if mask is None or mask.dim() != 2:
            return torch.ones_like(self.ids, dtype=torch.bool)
        return mask.bool()


class RecordedForwards:
    """Records a model's forward passes with a gradient, between `begin` and `end`.

    Two hooks keep what the model is given and what the loss' derivative by its outputs is; they
    change nothing that passes through.

    **Arguments:** `called`: what the trainer calls; `device`: the model's.
    """

    def __init__(self, called: nn.Module, device: torch.device) -> None:
        self.forwards: list[Forward] = []
        self.error: Exception | None = None
        self._called, self._device = called, device
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
                type(self._called).__name__,
                "its training calls no forward pass of the model that gives logits or "
                "log-probabilities with a gradient; watch answers by ProbeCallback",
            )
        return self.forwards

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.error is not None:
            return
        try:
            check_rows(named.get("position_ids"), named.get("attention_mask"))
            self.forwards.append(Forward(arguments, dict(named), draws_of(self._device)))
        except Exception as error:  # the trainer's own pass goes on
            self.error = error

    def _leave(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        if not torch.is_grad_enabled() or self.error is not None:
            return
        try:
            forward = self.forwards[-1]
            for name, value in differentiable(output, len(forward.ids)).items():
                value.register_hook(partial(_record_pull, forward.pulls, name))
        except Exception as error:
            self.error = error


def check_rows(
    positions: Int[Tensor, "rows length"] | None, mask: Shaped[Tensor, " ..."] | None
) -> None:
    """Raises `ConfigError` where a row holds several sequences, whose positions begin again."""
    if positions is None:
        return
    falls = positions.diff(dim=-1) < 0
    if mask is not None and mask.dim() == 2:  # positions of padding mean nothing
        falls = falls & mask[:, 1:].bool() & mask[:, :-1].bool()
    if bool(falls.any()):
        raise ConfigError(
            "trainer.data_collator",
            "positions that begin again within a row",
            "forces tell sequences apart by their rows; turn off packing and padding_free",
        )


def differentiable(output: Any, sequences: int) -> dict[str, Float[Tensor, "{sequences} ..."]]:
    """The outputs with a row per sequence and a gradient, such as logits, by their names."""
    outputs = {}
    for name in ("logits", "log_probs", "entropy"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor) and value.requires_grad and len(value) == sequences:
            outputs[name] = value
    return outputs


def _record_pull(pulls: NamedTensors, name: str, pull: Float[Tensor, " ..."] | None) -> None:
    """A hook; compiled passes call it with None for what the loss does not use."""
    if pull is not None:
        pulls[name] = pull.detach().cpu()
