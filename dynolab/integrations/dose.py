"""The dose that forces choose, in TRL's trainers of losses on pairs."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from dynolab.forces.function.weights import NamedTensors
from dynolab.forces.ledger.forwards import draw_again, draws_of
from dynolab.forces.step.optimizers import UpdateFacts, optimizer_map
from dynolab.integrations.optimizer import TrainerOptimizer, config_of
from dynolab.integrations.trained import TrainedRows, Watching, check_trainer, context_of, unwrapped
from dynolab.likelihood.arithmetic import check_float32_products
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives.pairs import Per, TokenEffects, designed_doses
from dynolab.training.config import OptimizerConfig
from dynolab.training.dose import REACH
from dynolab.training.engine import SECOND_MOMENT, in_metric

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

PAIR_TRAINERS = ("DPOTrainer", "CPOTrainer", "ORPOTrainer")
"""Trainers of TRL whose forward pass reads a batch's chosen answers and then its rejected ones."""


UNSEEN = 0.25
"""Of the effects of a step's tokens: how much its gradient may do beside them without a warning."""

ROUGH = 0.3
"""How much of a slope may change where it is taken twice as far; rounding changes half of it."""

BYPASSED = (
    "the loss goes round the outputs of the model's forward, through which doses act (a fused or "
    "cut cross entropy); use one on its logits or log-probabilities, or leave DesignedDose out"
)


Outputs = Float[Tensor, "rows length *vocabulary"]
"""Logits, or the log-probabilities that a fused head gives."""


class DesignedDose(Watching):
    """Weakens each step's push on rejected answers, so that other chosen answers do not fall by it.

    The gradient of the loss through the rejected tokens of a device's batch is multiplied by the
    largest dose with which the batch lowers the mean log π of a sample of other chosen answers not
    at all, to first order (`dynolab.objectives.pairs`). The loss's value is not changed,
    nor what it does to chosen answers, so that this works with any loss of the trainer. What the
    batch does to an answer is the product of its gradient and the sample's in the optimizer's
    metric: one more forward pass of the batch, without a gradient, with the weights a little
    along the sample's gradient. Momentum and weight decay are left out.

    The trainer's log has `dose/rejected`, the mean dose, and in nats of the sample's mean log π:

    - `dose/others`: the change by the step, of passes before and after it.
    - `dose/others_whole`: about that with whole pushes: to first order, and at the step's own clip
      factor and second moments, which whole pushes would change.
    - `dose/momentum`: what momentum and weight decay do, to first order, in steps that draw a
      sample.

    If it fails, one warning says why, and training goes on with whole pushes.

    **Arguments:**

    - `trainer`: a `DPOTrainer`, `CPOTrainer` or `ORPOTrainer` of TRL, before training.
    - `per`: what has its own dose: the batch, each pair, or each token.
    - `sample`: chosen answers to protect.
    - `every`: optimizer steps for which a sample and its gradient are kept.
    - `examples`: answers to protect; default: chosen ones of `trainer.train_dataset` that are not
      in the batch when the sample is drawn.

    Under 16-bit arithmetic the batch's passes for the doses are made in float32.

    **Raises:** `ConfigError` for other trainers, DeepSpeed, FSDP and compiled models. What shows
    in training alone (an optimizer of another form than SGD, Adam, AdamW and RMSprop, a loss that
    goes round the model's forward, a forward that rounds) is a warning: pushes stay whole.
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
        remedy = "doses need the model's own passes; leave it out"
        check_settings(
            *(
                (bool(getattr(trainer.args, name, False)), f"trainer.args.{name}", True, remedy)
                for name in ("deepspeed", "torch_compile")
            ),
            (sample < 1, "sample", sample, "must be 1 or more"),
            (every < 1, "every", every, "must be 1 or more"),
        )
        self.trainer, self.per, self.every, self.sample = trainer, per, every, sample
        self._examples: list[Encoded] = []
        if examples:
            tokenizer: Any = trainer.processing_class
            encoder = Encoder(tokenizer, context_of(trainer), "drop")
            self._examples = [row.chosen for row in encoder.examples(examples)]
        self._sample: list[Encoded] = []
        self._slope: NamedTensors = {}
        self._direction: NamedTensors = {}
        self._effects: list[Float[Tensor, " 4"]] = []
        self._step: _Step | None = None
        self._handles: list[Any] = []
        self._busy = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reads the rows and sets the hooks."""
        self.give_up()  # the hooks of a training that was broken off
        self.off = ""
        self.attempt(self._prepare)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Has a new sample drawn where one is due; the direction is every step's."""
        self._direction, self._effects, self._step = {}, [], None
        self._is_fresh = False
        if state.global_step % self.every == 0:
            self._slope = {}

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reads the gradient as it is clipped, and the optimizer's state that it meets."""
        self._step = self.attempt(self._read_step)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measures what the step did to the sample, and logs it with the trainer's own metrics."""
        step = self._step
        if step is not None:
            self.attempt(lambda: self._enter_log(step))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the hooks away."""
        self.give_up()

    def give_up(self) -> None:
        """Takes the hooks away; pushes are whole again."""
        for handle in self._handles:
            handle.remove()
        # Another callback may have wrapped the trainer's clipping since; then it stays wrapped.
        if self._handles and self.trainer.accelerator.clip_grad_norm_ is self._clipping:
            self._optimizer_view.close()
        self._handles, self._slope, self._direction = [], {}, {}
        self._effects, self._step = [], None

    def _prepare(self) -> None:
        trainer: Any = self.trainer
        check_float32_products()
        self._model: nn.Module = unwrapped(trainer)
        self._device = next(self._model.parameters()).device
        self._logits = ResponseLogits(self._model)
        self._trained = {n: p for n, p in self._model.named_parameters() if p.requires_grad}
        self._optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self._is_smooth = self._said = False
        list(self._groups())  # raises for an optimizer of another form
        self._others = self._examples
        if not self._others:
            rows = TrainedRows(trainer, trainer.train_dataset)
            chosen = (row.answer for row in rows.answers() if row.kind == "chosen")
            self._others = [answer for answer in chosen if answer is not None]
        if not self._others:
            raise ConfigError(
                "examples", None, "the training rows have no chosen answers; give some"
            )
        weights = [p for p in self._model.parameters() if p.is_floating_point()]
        narrow = any(torch.finfo(p.dtype).bits < 32 for p in weights)
        self._rounded = narrow or trainer.accelerator.mixed_precision != "no"
        self._optimizer_view = TrainerOptimizer(trainer, self._trained)
        self._clipping = trainer.accelerator.clip_grad_norm_
        self._handles = [
            self._model.register_forward_pre_hook(self._enter),
            self._model.register_forward_hook(self._leave, with_kwargs=True),
        ]

    def _is_step(self) -> bool:
        """Whether a forward pass is one that the step differentiates."""
        return torch.is_grad_enabled() and self._model.training and not (self._busy or self.off)

    def _enter(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        if self._is_step():
            self._draws = draws_of(self._device)

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
        outputs = _read(output)
        if not outputs.requires_grad:
            return
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        if len(ids) % 2:
            raise ConfigError(
                "trainer",
                type(self.trainer).__name__,
                f"doses need a batch's chosen answers and then its rejected ones in one forward; "
                f"it has one of {len(ids)} rows",
            )
        with _without_autocast(self._model, self._device):
            if not self._slope:
                mask = named.get("attention_mask", torch.ones_like(ids)).bool()
                rows = zip(ids, mask, strict=True)
                self._draw({tuple(row[real].tolist()) for row, real in rows})
            if not self._direction:
                if self._version != self._versions():  # moved by something else than the step
                    self._measure()
                self._point()
            reach = REACH * torch.finfo(torch.float32).eps ** 0.5 / self._rise
            start = outputs.detach()
            if self._rounded:
                start = self._outputs(0.0, arguments, named)
            slope = (self._outputs(reach, arguments, named) - start) / reach
            if not self._is_smooth:
                farther = (self._outputs(2 * reach, arguments, named) - start) / (2 * reach)
                self._is_smooth = _is_smooth(slope, farther)
        outputs.register_hook(lambda gradient: self._dosed(gradient, slope))

    def _weights(self, reach: float = 0.0) -> NamedTensors:
        """Weights along the direction, in float32 where they have less."""
        weights = {}
        for name, p in self._model.named_parameters():
            if p.is_floating_point():  # quantised ones stay as they are
                weights[name] = p.detach().to(torch.promote_types(p.dtype, torch.float32))
                if reach and name in self._direction:
                    weights[name] = weights[name] + reach * self._direction[name]
        return weights

    def _outputs(self, reach: float, arguments: tuple[Any, ...], named: dict[str, Any]) -> Outputs:
        """The outputs with the weights moved, at the step's own draws of dropout."""
        draw_again(self._draws, self._device)
        with torch.no_grad():
            return _read(functional_call(self._model, self._weights(reach), arguments, named))

    def _draw(self, batch: set[tuple[int, ...]]) -> None:
        """The sample, its mean log π, and that one's slope along every trained weight."""
        trainer: Any = self.trainer
        batch = set().union(*distributed.gather(batch))
        draws = random.Random(f"{trainer.args.seed}/{trainer.state.global_step}")
        others = [answer for answer in self._others if answer.ids not in batch] or self._others
        self._sample = draws.sample(others, min(self.sample, len(others)))
        self._is_fresh = True
        self._measure()
        weights = tuple(self._trained.values())
        slopes = tuple(torch.zeros_like(weight) for weight in weights)
        if mine := distributed.deal(self._sample):
            with _evaluating(self._model):
                logps = self._logits(collate(mine, 0).to(self._device), token_logps)
                slopes = torch.autograd.grad(logps.sum(), weights, materialize_grads=True)
        self._slope = {
            name: distributed.add_up(slope.detach().float() / len(self._sample))
            for name, slope in zip(self._trained, slopes, strict=True)
        }

    def _versions(self) -> int:
        """A number that grows where a weight is written to."""
        return sum(weight._version for weight in self._trained.values())

    def _measure(self) -> None:
        """Takes the sample's mean log π with the weights as they are."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        if mine := distributed.deal(self._sample):
            weights = {f"model.{name}": weight for name, weight in self._weights().items()}
            batch = collate(mine, 0).to(self._device)
            with torch.no_grad(), _evaluating(self._model):
                total += functional_call(self._logits, weights, (batch, token_logps)).double().sum()
        self._mean = float(distributed.add_up(total)) / len(self._sample)
        self._version = self._versions()

    def _groups(
        self,
    ) -> Iterator[tuple[dict[str, Any], OptimizerConfig, NamedTensors]]:
        """Options, form and trained weights of every group of the optimizer."""
        for group in self._optimizer.param_groups:
            config = config_of(self._optimizer, group)
            if config is None:
                raise ConfigError(
                    "trainer.optimizer",
                    type(self._optimizer).__name__,
                    "doses need the form of its steps; use SGD, AdamW, RMSprop, or Adam without "
                    "weight decay, with none of nesterov, dampening, amsgrad, maximize, centered",
                )
            members = {id(p) for p in group["params"]}
            yield group, config, {n: p for n, p in self._trained.items() if id(p) in members}

    def _state(self, weight: Float[Tensor, " ..."]) -> NamedTensors:
        state = self._optimizer.state.get(weight, {})
        return {key: value for key, value in state.items() if isinstance(value, Tensor)}

    def _point(self) -> None:
        """The direction in which the optimizer would move the weights by the sample's slope.

        It has the groups' learning rates and this step's second moments, up to a factor.
        """
        groups, self._direction = list(self._groups()), {}
        rates = [float(group["lr"]) for group, _, _ in groups]
        if not any(rates):  # the first step of a warm-up, whose gradient momentum keeps
            rates = [float(group.get("initial_lr") or 1.0) for group, _, _ in groups]
        for rate, (_, config, members) in zip(rates, groups, strict=True):
            states = {name: self._state(p) for name, p in members.items()}
            key = SECOND_MOMENT.get(config.name)
            moments = {name: state[key].float() for name, state in states.items() if key in state}
            step = max((int(state.get("step", 0)) for state in states.values()), default=0)
            slopes = {name: self._slope[name] for name in members}
            for name, moved in in_metric(config, step, slopes, moments).items():
                self._direction[name] = rate * moved
        self._rise = sum(_total(self._slope[n] * moved) for n, moved in self._direction.items())
        if not self._rise > 0:
            raise ConfigError(
                "examples", len(self._sample), "no trained weight moves their log-probabilities"
            )

    def _dosed(
        self,
        gradient: Outputs,
        slope: Outputs,
    ) -> Outputs | None:
        """The gradient by the outputs, its rejected rows multiplied by their doses."""
        with torch.no_grad():
            return self.attempt(lambda: self._doses(gradient, slope))

    def _doses(
        self,
        gradient: Outputs,
        slope: Outputs,
    ) -> Outputs:
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
        pushed = dose[used & rejected]
        mean = pushed.mean() if len(pushed) else torch.ones(())
        dosed = dose * effect
        sums = [mean, effect.sum(), dosed.sum(), dosed.abs().sum()]
        self._effects.append(torch.stack(sums).double())
        return gradient * dose.to(gradient).view(rows, width, *[1] * (gradient.dim() - 2))

    def _read_step(self) -> _Step | None:
        """The step between its gradient and its update."""
        gradients, trainer = self._optimizer_view.gradients(), self.trainer
        # Clipping divides by the scale of fp16; without it the optimizer's step does.
        scale = 1.0 if trainer.args.max_grad_norm else gradients.scale
        if not self._effects:
            if not any(bool(gradient.any()) for gradient in gradients.by_name.values()):
                return None
            raise ConfigError("trainer", type(trainer).__name__, BYPASSED)
        momentum = way = foreseen = projection = 0.0
        for group, config, members in self._groups():
            for name, p in members.items():
                if p.grad is None:  # the optimizer leaves it alone
                    continue
                slope, state = self._slope[name].flatten(), self._state(p)
                gradient = gradients.by_name[name].to(slope) / scale
                step = optimizer_map(
                    UpdateFacts(int(state.get("step", 0)), float(group["lr"]), 1.0, config),
                    p.detach().to(slope).flatten(),
                    {k: v.to(slope).flatten() for k, v in state.items() if v.shape == p.shape},
                    gradient,
                )
                along = self._direction[name].flatten() * gradient
                momentum += _total(slope * step.history)
                way += _total((slope * step.scale * gradient).abs())
                foreseen += _total(along.abs())
                projection -= _total(along)
        effects = torch.stack(self._effects)
        mean = torch.cat([effects[:, :1].mean(0), effects[:, 1:].sum(0) / gradients.scale])
        dose, undosed, dosed, size = (
            distributed.add_up(mean.to(self._device)) / distributed.world_size()
        ).tolist()
        # Both by the gradient before clipping. How far the optimizer really goes with it, beside
        # how far it was foreseen to go, is the unit of what was foreseen.
        unit = gradients.clip * way / foreseen if foreseen else 0.0
        if abs(projection / gradients.clip - dosed) > UNSEEN * size and not self._said:
            self._said = True
            _log.warning(
                "DesignedDose sees a part of the gradient alone: by that one a step does %.3g nats "
                "to the answers, by all %.3g. Some of the loss does not go through the outputs of "
                "the model's forward (auxiliary losses, a fused cross entropy); it has no dose",
                unit * dosed,
                unit * projection / gradients.clip,
            )
        return _Step(dose, unit * (dosed - undosed), momentum)

    def _enter_log(self, step: _Step) -> None:
        before = self._mean
        with _without_autocast(self._model, self._device):
            self._measure()
        change = self._mean - before
        values = {
            "dose/rejected": step.dose,
            "dose/others_whole": change - step.spared,
            "dose/others": change,
        }
        if self._is_fresh:  # an older slope would not tell what momentum does
            values["dose/momentum"] = step.momentum
        trainer: Any = self.trainer
        if hasattr(trainer, "store_metrics"):  # CPO and ORPO
            trainer.store_metrics(values, "train")
            return
        for name, value in values.items():
            trainer._metrics["train"].setdefault(name, []).append(value)


@dataclass(frozen=True)
class _Step:
    """What is known of a step before it is made, in nats of the sample's mean but for the dose.

    `dose` is the mean over rejected tokens, `spared` what whole pushes would do less, `momentum`
    what momentum and weight decay will do.
    """

    dose: float
    spared: float
    momentum: float


def _total(values: Float[Tensor, " ..."]) -> float:
    return float(values.sum(dtype=torch.float64))


def _is_smooth(slope: Float[Tensor, "*outputs"], farther: Float[Tensor, "*outputs"]) -> bool:
    """Whether difference quotients are the outputs' own; False where none of them moves.

    **Arguments:** `slope`, `farther`: over some way, and over twice that way.

    **Raises:** `ConfigError` where they are rounding, which twice the way halves.
    """
    some = slice(None, None, max(1, slope.numel() // 2**16))
    near, far = slope.flatten()[some], farther.flatten()[some]
    moves = (near != 0) | (far != 0)
    near, far = near[moves], far[moves]
    if len(near) and bool((far - near).abs().median() > ROUGH * near.abs().median()):
        raise ConfigError(
            "trainer.model",
            "a forward that rounds what float32 weights give",
            "doses are differences of outputs, which its rounding drowns; train without autocast "
            "or quantised layers of the model's own",
        )
    return bool(len(near))


@contextmanager
def _without_autocast(model: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, the model computes in its weights' dtype.

    accelerate has the model's forward enter autocast, which no context around it switches off.
    """
    forwards = vars(model)
    around, inside = forwards.get("forward"), forwards.get("_original_forward")
    with torch.autocast(device.type, enabled=False):
        if inside is not None:
            forwards["forward"] = inside
        try:
            yield
        finally:
            if inside is not None:
                forwards["forward"] = around


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """While open, the model has no dropout; layers whose passes are checkpointed still have that,
    which transformers does in training alone."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, training in modes:
            module.training = training and bool(getattr(module, "gradient_checkpointing", False))
        yield
    finally:
        for module, training in modes:
            module.training = training


def _read(output: Any) -> Float[Tensor, "rows length ..."]:
    """The log-probabilities that a fused head gives, else the logits."""
    outputs: Float[Tensor, "rows length ..."] | None = getattr(output, "log_probs", None)
    if outputs is None:
        outputs = getattr(output, "logits", None)
    if outputs is None:
        raise ConfigError("trainer.model", "a forward without logits", BYPASSED)
    return outputs
