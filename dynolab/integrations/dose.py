"""The dose that forces choose, in TRL's trainers of losses on pairs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from dynolab import distributed
from dynolab.data.batches import collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example
from dynolab.errors import ConfigError, check_settings
from dynolab.integrations.trained import TrainedRows, Watching, check_trainer, context_of, unwrapped
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives.pairs import Per, TokenEffects, designed_doses
from dynolab.training.config import OptimizerConfig
from dynolab.training.dose import REACH
from dynolab.training.engine import in_metric

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

PAIR_TRAINERS = ("DPOTrainer", "CPOTrainer", "ORPOTrainer")
"""Trainers of TRL whose forward pass reads a batch's chosen answers and then its rejected ones."""


class DesignedDose(Watching):
    """Weakens each step's push on rejected answers, so that other chosen answers do not fall by it.

    The gradient of the loss through the rejected tokens of a device's batch is multiplied by the
    largest dose with which the batch lowers the mean log π of a sample of other chosen answers not
    at all, to first order (`dynolab.objectives.pairs`). The loss's value is not changed,
    nor what it does to chosen answers, so that this works with any loss of the trainer. What the
    batch does to an answer is the product of its gradient and the sample's in the optimizer's
    metric: one more forward pass of the batch, without a gradient, with the weights a little
    along the sample's gradient. Momentum and weight decay are left out.

    `dose/rejected`, the mean dose, and what the batch would do and does to the sample's mean log π,
    `dose/others_whole` and `dose/others` in nats, go through the trainer's log. If it fails, one
    warning says why, and training goes on with whole pushes.

    **Arguments:**

    - `trainer`: a `DPOTrainer`, `CPOTrainer` or `ORPOTrainer` of TRL, before training.
    - `per`: what has its own dose: the batch, each pair, or each token.
    - `sample`: chosen answers to protect.
    - `every`: optimizer steps for which a sample and its gradient are kept.
    - `examples`: answers to protect; default: chosen ones of `trainer.train_dataset` that are not
      in the batch when the sample is drawn.

    Under 16-bit arithmetic the batch's passes for the doses are made in float32.

    **Raises:** `ConfigError` for other trainers, DeepSpeed, FSDP and compiled models. Another
    optimizer than SGD, Adam and AdamW is known when training begins: a warning says that pushes
    stay whole.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        per: Per = "batch",
        sample: int = 8,
        every: int = 4,
        examples: Sequence[Example] = (),
    ) -> None:
        names = {kind.__name__ for kind in type(trainer).__mro__}
        if names.isdisjoint(PAIR_TRAINERS):
            raise ConfigError(
                "trainer", type(trainer).__name__, f"give one of {', '.join(PAIR_TRAINERS)}"
            )
        check_trainer(trainer, "doses")
        own = "doses need the model's own passes; leave it out"
        check_settings(
            *(
                (bool(getattr(trainer.args, name, False)), f"trainer.args.{name}", True, own)
                for name in ("deepspeed", "torch_compile", "padding_free")
            ),
            (sample < 1, "sample", sample, "must be 1 or more"),
            (every < 1, "every", every, "must be 1 or more"),
        )
        self.trainer, self.per, self.every, self.sample = trainer, per, every, sample
        self._others: list[Encoded] = []
        if examples:
            tokenizer: Any = trainer.processing_class
            encoder = Encoder(tokenizer, context_of(trainer), "drop")
            self._others = [row.chosen for row in encoder.examples(examples)]
        self._sample: list[Encoded] = []
        self._direction: dict[str, Tensor] = {}
        self._rise = 0.0
        self._busy = False
        self._random: Tensor | None = None
        self._log: dict[str, list[float]] = {}
        self._handles: list[Any] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reads the rows and sets the hooks."""
        self.off = ""
        self.attempt(self._prepare)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draws a new sample where one is due."""
        if state.global_step % self.every == 0:
            self._direction = {}

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Logs what the step's doses were, with the trainer's own metrics."""
        metrics = getattr(self.trainer, "_metrics", None) or {}
        for name, values in self._log.items():
            kept = metrics.get("train", {}).setdefault(name, [])
            kept.append(sum(values) / len(values))
        self._log = {}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the hooks away."""
        self.give_up()

    def give_up(self) -> None:
        """Takes the hooks away; pushes are whole again."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._direction = [], {}

    def _prepare(self) -> None:
        trainer: Any = self.trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        if not isinstance(optimizer, torch.optim.SGD | torch.optim.Adam | torch.optim.AdamW):
            raise ConfigError("optimizer", type(optimizer).__name__, "use SGD, Adam or AdamW")
        self._optimizer = optimizer
        self._model: nn.Module = unwrapped(trainer)
        self._logits = ResponseLogits(self._model)
        if not self._others:
            rows = TrainedRows(trainer, trainer.train_dataset)
            chosen = (each for each in rows.answers() if each.kind == "chosen")
            self._others = [each.answer for each in chosen if each.answer is not None]
        if not self._others:
            raise ConfigError(
                "examples", None, "the training rows have no chosen answers; give some"
            )
        half = any(p.dtype not in (torch.float32, torch.float64) for _, p in self._trained())
        self._rounded = bool(half or trainer.args.bf16 or trainer.args.fp16)
        self._handles = [
            self._model.register_forward_pre_hook(self._enter),
            self._model.register_forward_hook(self._leave, with_kwargs=True),
        ]

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self._model.named_parameters() if p.requires_grad]

    def _is_step(self) -> bool:
        """Whether a forward pass is one that the step differentiates."""
        return torch.is_grad_enabled() and self._model.training and not (self._busy or self.off)

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if self._is_step():
            self._random = torch.get_rng_state()

    def _leave(
        self, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        if not self._is_step():
            return
        self._busy = True
        try:
            self.attempt(lambda: self._weaken(arguments, named, output))
        finally:
            self._busy = False

    def _weaken(self, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        """Has the gradient through the rejected rows multiplied by their doses."""
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        with torch.random.fork_rng():
            if not self._direction:
                mask = named.get("attention_mask", torch.ones_like(ids)).bool()
                rows = zip(ids.tolist(), mask.tolist(), strict=True)
                self._aim({tuple(t for t, m in zip(*row, strict=True) if m) for row in rows})
            reach = REACH * torch.finfo(torch.float32).eps ** 0.5 / self._rise
            own = _read(output)
            start = own.detach()
            if self._rounded:
                start = self._moved(0.0, arguments, named)
            slope = (self._moved(reach, arguments, named) - start) / reach
        own.register_hook(lambda gradient: self._dosed(gradient, slope))

    def _moved(self, reach: float, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        """The outputs with the weights moved along the sample's gradient."""
        weights = {
            name: (p.detach().float() if self._rounded else p.detach())
            + (reach * self._direction[name] if name in self._direction else 0)
            for name, p in self._model.named_parameters()
            if self._rounded or name in self._direction
        }
        assert self._random is not None
        torch.set_rng_state(self._random)
        device = next(self._model.parameters()).device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            return _read(functional_call(self._model, weights, arguments, named))

    def _aim(self, batch: set[tuple[int, ...]]) -> None:
        """P q: the sample's gradient in the optimizer's metric, and what it gains along that."""
        trainer: Any = self.trainer
        draws = random.Random(f"{trainer.args.seed}/{trainer.state.global_step}")
        others = [one for one in self._others if one.ids not in batch] or self._others
        self._sample = sample = draws.sample(others, min(self.sample, len(others)))
        names, weights = zip(*self._trained(), strict=True)
        batch_of = collate(distributed.deal(sample) or sample[:1], 0).to(weights[0].device)
        mean = self._logits(batch_of, token_logps).sum() / len(sample)
        parts = torch.autograd.grad(mean, weights, materialize_grads=True)
        gradient = {
            name: distributed.add_up(part.float() if self._rounded else part)
            for name, part in zip(names, parts, strict=True)
        }
        group = self._optimizer.param_groups[0]
        states = [self._optimizer.state.get(weight, {}) for weight in weights]
        adam = not isinstance(self._optimizer, torch.optim.SGD)
        config = OptimizerConfig(
            name="adamw" if adam else "sgd",
            **({"betas": group["betas"], "epsilon": group["eps"]} if adam else {}),
        )
        moments = {
            name: state["exp_avg_sq"].to(gradient[name])
            for name, state in zip(names, states, strict=True)
            if "exp_avg_sq" in state
        }
        step = max((int(state.get("step", 0)) for state in states), default=0)
        self._direction = in_metric(config, step, gradient, moments)
        self._rise = float(sum((g * self._direction[n]).sum() for n, g in gradient.items()))

    def _dosed(self, gradient: Tensor, slope: Tensor) -> Tensor | None:
        """The gradient by the outputs, its rejected rows multiplied by their doses."""
        with torch.no_grad():
            return self.attempt(lambda: self._doses(gradient, slope))

    def _doses(self, gradient: Tensor, slope: Tensor) -> Tensor:
        rows, width = gradient.shape[:2]
        # By token: what the step does to the sample, and how hard it pushes.
        effect = -(gradient * slope).view(rows, width, -1).sum(-1).cpu()
        push = gradient.view(rows, width, -1).abs().sum(-1).cpu()
        pair = torch.arange(rows).remainder(rows // 2)[:, None].expand_as(effect)
        rejected = (torch.arange(rows) >= rows // 2)[:, None].expand_as(effect)
        used = push > 0
        part = TokenEffects(effect[used], push[used], rejected[used], pair[used])
        dose = torch.ones_like(effect)
        dose[used] = designed_doses([part], self.per)[0].to(dose)
        rate = float(self._optimizer.param_groups[0]["lr"])
        for name, value in (
            ("dose/rejected", dose[used & rejected].mean()),
            ("dose/others_whole", rate * effect.sum()),
            ("dose/others", rate * (dose * effect).sum()),
        ):
            self._log.setdefault(name, []).append(float(value))
        return gradient * dose.to(gradient).view(rows, width, *[1] * (gradient.dim() - 2))


def _read(output: Any) -> Float[Tensor, "rows length ..."]:
    """The log-probabilities that a fused head gives, else the logits."""
    fused = getattr(output, "log_probs", None)
    outputs: Tensor = output.logits if fused is None else fused
    return outputs
