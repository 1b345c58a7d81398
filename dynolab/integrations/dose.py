"""The dose that forces choose, in TRL's trainers of losses on pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from dynolab import distributed
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import Example
from dynolab.errors import ConfigError, check_settings
from dynolab.forces.ledger.forwards import draw_again, draws_of
from dynolab.forces.step.optimizers import UpdateFacts, optimizer_map
from dynolab.integrations.dose_passes import (
    BYPASSED,
    Outputs,
    is_smooth,
    outputs_of,
    without_autocast,
)
from dynolab.integrations.optimizer import TrainerOptimizer
from dynolab.integrations.protected_sample import ProtectedSample, total
from dynolab.integrations.trained import TrainedRows, Watching, check_trainer, context_of, unwrapped
from dynolab.likelihood.arithmetic import check_float32_products
from dynolab.objectives.pairs import Per, TokenEffects, designed_doses
from dynolab.training.dose import REACH

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

PAIR_TRAINERS = ("DPOTrainer", "CPOTrainer", "ORPOTrainer")
"""Trainers of TRL whose forward pass reads a batch's chosen answers and then its rejected ones."""


UNSEEN = 0.25
"""Of the effects of a step's tokens: how much its gradient may do beside them without a warning."""


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
    - `dose/others_whole`: about what it would have been with whole pushes: `dose/others` less what
      the doses spared, to first order and at the step's own clip factor and second moments, which
      whole pushes would change.
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

    trainers: ClassVar[tuple[str, ...]] = PAIR_TRAINERS
    """Names of the trainers that it takes."""

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
        if names.isdisjoint(self.trainers):
            raise ConfigError(
                "trainer", type(trainer).__name__, f"give one of {', '.join(self.trainers)}"
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
        self._protected: ProtectedSample | None = None
        # Of each backward pass of a step: the mean dose, and sums over its tokens of what they do
        # to the sample undosed, dosed, and dosed without their signs.
        self._effects: list[Float[Tensor, " 4"]] = []
        self._step: DoseStep | None = None
        self._clipping: Any = None
        self._handles: list[Any] = []
        self._busy = False  # our own forwards come through the hooks, too
        self._is_one_sample = True  # a step's batches have one sample in common

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
        self._effects, self._step = [], None
        self._is_fresh = False
        if self._protected is not None:
            self._protected.direction = {}  # empty: to be taken anew
            if state.global_step % self.every == 0:
                self._protected.slope = {}

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
        self._handles, self._effects, self._step = [], [], None
        if self._protected is not None:
            self._protected.slope = self._protected.direction = {}

    def _prepare(self) -> None:
        trainer: Any = self.trainer
        check_float32_products()
        self._watch_forwards()
        self._is_smooth = self._has_warned = False
        answers = self._answers()
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self._protected = ProtectedSample(self._model, optimizer, answers, self.sample)
        weights = [p for p in self._model.parameters() if p.is_floating_point()]
        narrow = any(torch.finfo(p.dtype).bits < 32 for p in weights)
        # The trainer's outputs are rounded to 16 bits, and no start for a small difference.
        self._rounded = narrow or trainer.accelerator.mixed_precision != "no"
        self._optimizer_view = TrainerOptimizer(trainer, self._protected.trained)
        self._clipping = trainer.accelerator.clip_grad_norm_

    def _watch_forwards(self) -> None:
        """Sets the hooks on the model's forward."""
        self._model: nn.Module = unwrapped(self.trainer)
        self._device = next(self._model.parameters()).device
        self._handles = [
            self._model.register_forward_pre_hook(self._enter),
            self._model.register_forward_hook(self._leave, with_kwargs=True),
        ]

    def _answers(self) -> list[Encoded]:
        """The chosen answers that samples are drawn from."""
        answers = self._examples
        if not answers:
            rows = TrainedRows(self.trainer, self.trainer.train_dataset)
            chosen = (row.answer for row in rows.answers() if row.kind == "chosen")
            answers = [answer for answer in chosen if answer is not None]
        if not answers:
            raise ConfigError(
                "examples", None, "the training rows have no chosen answers; give some"
            )
        return answers

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
        outputs, protected = outputs_of(output), self._protected
        assert protected is not None
        if not outputs.requires_grad:
            return
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        mask = named.get("attention_mask", torch.ones_like(ids)).bool()
        rows = [tuple(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]
        with without_autocast(self._model, self._device):
            self._protect(protected, rows)
            if not protected.slope:
                return
            if not protected.direction:
                protected.point()
            # How far along the direction: so that the sample's mean gains REACH √ε nats.
            reach = REACH * torch.finfo(torch.float32).eps ** 0.5 / protected.rise
            start = outputs.detach()
            if self._rounded:
                start = self._outputs(0.0, arguments, named)
            # ∂z along the direction, of every output z.
            slope = (self._outputs(reach, arguments, named) - start) / reach
            if not self._is_smooth:  # tried once
                farther = (self._outputs(2 * reach, arguments, named) - start) / (2 * reach)
                self._is_smooth = is_smooth(slope, farther)
        outputs.register_hook(lambda gradient: self._dosed(gradient, slope))

    def _protect(self, protected: ProtectedSample, rows: Sequence[tuple[int, ...]]) -> None:
        """Draws a sample where one is due.

        **Arguments:** `rows`: the tokens of the forward's sequences.
        """
        self._check_pairs(len(rows))
        # Chosen answers are the first half of the rows, rejected ones the second, pair by pair.
        self._rejected = torch.arange(len(rows)) >= len(rows) // 2
        if not protected.slope:
            trainer: Any = self.trainer
            protected.draw(set(rows), f"{trainer.args.seed}/{trainer.state.global_step}")
            self._is_fresh = True

    def _check_pairs(self, rows: int) -> None:
        if rows % 2:
            raise ConfigError(
                "trainer",
                type(self.trainer).__name__,
                "doses need a batch's chosen answers and then its rejected ones in one forward; "
                f"it has one of {rows} rows",
            )

    def _outputs(self, reach: float, arguments: tuple[Any, ...], named: dict[str, Any]) -> Outputs:
        """The outputs with the weights moved, at the step's own draws of dropout."""
        draw_again(self._draws, self._device)
        with torch.no_grad():
            assert self._protected is not None
            weights = self._protected.weights(reach)
            return outputs_of(functional_call(self._model, weights, arguments, named))

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
        """The same, with what the tokens do to the sample noted.

        A step −P ∂L/∂θ through a token's outputs z moves the sample's mean log π q by
        `−⟨∂L/∂z, ∂z · P ∂q/∂θ⟩`, as P is symmetric; `slope` is `∂z · P ∂q/∂θ`.
        """
        rows, width = gradient.shape[:2]
        # By token: this effect, and how hard the loss pushes.
        effect = -(gradient * slope).view(rows, width, -1).sum(-1).cpu()
        push = gradient.view(rows, width, -1).abs().sum(-1).cpu()
        pair = torch.arange(rows).remainder(max(1, rows // 2))[:, None].expand_as(effect)
        rejected = self._rejected[:, None].expand_as(effect)
        used = push > 0
        part = TokenEffects(effect[used], push[used], rejected[used], pair[used])
        dose = torch.ones_like(effect)
        dose[used] = designed_doses([part], self.per)[0].to(dose)
        pushed = dose[used & rejected]
        # Without rejected tokens there is nothing to dose.
        mean = pushed.mean() if len(pushed) else torch.ones(())
        dosed = dose * effect
        sums = [mean, effect.sum(), dosed.sum(), dosed.abs().sum()]
        self._effects.append(torch.stack(sums).double())
        return gradient * dose.to(gradient).view(rows, width, *[1] * (gradient.dim() - 2))

    def _read_step(self) -> DoseStep | None:
        """The step between its gradient and its update.

        With q the sample's slope, d = P q its direction and g the dosed gradient of all the loss:
        `momentum` is what momentum and weight decay do, ⟨q, history⟩; `of_gradient` is −⟨d, g⟩, the
        effect of all of g, as tokens have theirs; `foreseen` is Σ|d_j g_j|, and `realised` is
        Σ|q_j scale_j g_j|, the same by the optimizer's map of this very step.
        """
        gradients, trainer = self._optimizer_view.gradients(), self.trainer
        protected = self._protected
        assert protected is not None
        # Gradients here: clipping has divided them by the scale of fp16; without it the optimizer's
        # step does.
        scale = 1.0 if trainer.args.max_grad_norm else gradients.scale
        if not self._effects:
            if not any(bool(gradient.any()) for gradient in gradients.by_name.values()):
                return None
            raise ConfigError("trainer", type(trainer).__name__, BYPASSED)
        momentum = realised = foreseen = of_gradient = 0.0
        for group, config, members in protected.groups():
            for name, p in members.items():
                if p.grad is None:  # the optimizer leaves it alone
                    continue
                slope, state = protected.slope[name].flatten(), protected.state(p)
                gradient = gradients.by_name[name].to(slope) / scale
                # The factor 1 stands for the clip: `gradient` is clipped already.
                update_map = optimizer_map(
                    UpdateFacts(int(state.get("step", 0)), float(group["lr"]), 1.0, config),
                    p.detach().to(slope).flatten(),
                    {k: v.to(slope).flatten() for k, v in state.items() if v.shape == p.shape},
                    gradient,
                )
                along = protected.direction[name].flatten() * gradient
                momentum += total(slope * update_map.history)
                realised += total((slope * update_map.scale * gradient).abs())
                foreseen += total(along.abs())
                of_gradient -= total(along)
        effects = torch.stack(self._effects)
        # The dose is a mean over backward passes, effects are sums, of a loss times the fp16 scale.
        of_rank = torch.cat([effects[:, :1].mean(0), effects[:, 1:].sum(0) / gradients.scale])
        dose, undosed, dosed, dosed_size = (
            distributed.add_up(of_rank.to(self._device)) / distributed.world_size()
        ).tolist()
        # Effects are of the gradient before clipping, and d is right up to a factor. `unit` makes
        # nats of them: the clip factor, times the way that the optimizer really goes with the
        # clipped gradient over the foreseen one.
        unit = gradients.clip * realised / foreseen if foreseen else 0.0
        # The tokens' effects, beside that of the gradient as a whole.
        seen = abs(of_gradient / gradients.clip - dosed) <= UNSEEN * dosed_size
        if self._is_one_sample and not seen and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "DesignedDose sees a part of the gradient alone: by that one a step does %.3g nats "
                "to the answers, by all %.3g. Some of the loss does not go through the outputs of "
                "the model's forward (auxiliary losses, a fused cross entropy); it has no dose",
                unit * dosed,
                unit * of_gradient / gradients.clip,
            )
        return DoseStep(dose, unit * (dosed - undosed), momentum)

    def _enter_log(self, step: DoseStep) -> None:
        protected = self._protected
        assert protected is not None
        before = protected.mean
        with without_autocast(self._model, self._device):
            protected.measure()
        change = protected.mean - before
        # `others_whole`: without what the doses spared the sample.
        values = {
            "dose/rejected": step.dose,
            "dose/others_whole": change - step.spared,
            "dose/others": change,
        }
        if self._is_fresh:  # an older slope would not tell what momentum does
            values["dose/momentum"] = step.momentum
        self._store(values)

    def _store(self, values: dict[str, float]) -> None:
        """Has the trainer log values of a step."""
        trainer: Any = self.trainer
        if hasattr(trainer, "store_metrics"):  # CPO and ORPO
            trainer.store_metrics(values, "train")
            return
        for name, value in values.items():
            trainer._metrics["train"].setdefault(name, []).append(value)


@dataclass(frozen=True)
class DoseStep:
    """What is known of a step before it is made, in nats of the sample's mean but for the dose.

    `dose` is the mean over rejected tokens, `spared` what whole pushes would do less, `momentum`
    what momentum and weight decay will do.
    """

    dose: float
    spared: float
    momentum: float
