"""SAM on the output layer in trainers of transformers and TRL."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.errors import ConfigError, check_settings
from dynolab.integrations.trained import Watching, check_trainer, unwrapped
from dynolab.training.sharpness import Shift, ascent, output_layer

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


class LogitsSAM(Watching):
    """Takes each batch's gradient with the output layer moved to where its loss is higher.

    The layer's weights W become `W + ρ g / ‖g‖`, g the gradient of the batch's loss by W, while
    the trainer makes its passes, and W to the bit afterwards (logits-SAM, Luo et al., arXiv
    2603.18258). Each device's batch has its own g; the settings of a study take that of the whole
    step (`objective.logits_sam`). Where input and output embeddings are one matrix, both are moved;
    so is a reference that is the model without its adapters (not with `precompute_ref_log_probs`).
    It takes a forward pass more. What the trainer logs of its loss is of the moved layer.

    If it fails, one warning says why, and training goes on without it.

    **Arguments:** `trainer`: before training; `rho`: ρ, the length of the move.

    **Raises:** `ConfigError` for DeepSpeed, FSDP, compiled models and output layers of another kind
    than a linear one.
    """

    def __init__(self, trainer: Trainer, *, rho: float) -> None:
        check_trainer(trainer, "moves of the output layer")
        remedy = "the output layer is moved between two of the model's own passes; leave it out"
        check_settings(
            *(
                (bool(getattr(trainer.args, name, False)), f"trainer.args.{name}", True, remedy)
                for name in ("deepspeed", "torch_compile")
            ),
            (not rho > 0, "rho", rho, "must be above 0"),
        )
        self.trainer, self.rho = trainer, rho
        output_layer(_causal(trainer))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Puts itself between the trainer and its passes."""
        self.give_up()  # of a training that was broken off
        self.off = ""
        self._layer = output_layer(_causal(self.trainer))
        trainer: Any = self.trainer
        trainer.training_step = self._training_step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leaves the trainer as it was."""
        self.give_up()

    def give_up(self) -> None:
        """Leaves the trainer its own passes."""
        vars(self.trainer).pop("training_step", None)

    def _training_step(
        self, model: Any, inputs: Any, *rest: Any, **named: Any
    ) -> Float[Tensor, ""]:
        whole = type(self.trainer).training_step
        shift = self.attempt(lambda: self._ascent(model, inputs, *rest, **named))
        weight = self._layer.weight
        if shift is None:
            return whole(self.trainer, model, inputs, *rest, **named)
        before = weight.detach().clone()
        try:
            with torch.no_grad():
                weight += shift.to(weight.dtype)
            return whole(self.trainer, model, inputs, *rest, **named)
        finally:
            with torch.no_grad():
                weight.copy_(before)

    def _ascent(self, model: Any, inputs: Any, items: Any = None) -> Shift:
        trainer: Any = self.trainer
        weight, logged = self._layer.weight, copy.deepcopy(getattr(trainer, "_metrics", None))
        needed = weight.requires_grad
        try:
            weight.requires_grad_(True)  # adapters leave it out of training
            prepared = trainer._prepare_inputs(dict(inputs))
            with torch.enable_grad(), trainer.compute_loss_context_manager():
                loss = trainer.compute_loss(model, prepared, num_items_in_batch=items)
            (gradient,) = torch.autograd.grad(loss, weight, allow_unused=True)
        finally:
            weight.requires_grad_(needed)
            if logged is not None:  # what the pass has entered, the trainer's own will again
                trainer._metrics = logged
        if gradient is None:
            raise ConfigError(
                "trainer", type(trainer).__name__, "its loss does not go through the output layer"
            )
        return ascent(gradient.float(), self.rho)


def _causal(trainer: Trainer) -> Any:
    model = unwrapped(trainer)
    return model.get_base_model() if hasattr(model, "get_base_model") else model
