"""A training that dies somewhere and is taken up again, beside the same one left alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dynolab.likelihood import ResponseLogits
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.engine import Engine
from dynolab.training.job import TrainJob
from dynolab.training.loop import Trainer, train
from models.language import load_language_model, load_tokenizer
from tests.training.small import distance, make_job, trained_weights


class Died(Exception):
    """The training ends here, in the middle of a step."""


class Mortal(Trainer):
    """Counts gradients, and dies as one of them is added."""

    gradients = 0

    def __init__(self, job: TrainJob, last: int | None = None) -> None:
        super().__init__(job, load_language_model(job.model), load_tokenizer(job.model))
        self.last = last

    def _build_engine(self, logits: ResponseLogits) -> Engine:
        engine = super()._build_engine(logits)
        add = engine.backward

        def backward(loss: Tensor) -> None:
            add(loss)
            self.gradients += 1
            if self.gradients == self.last:
                raise Died

        engine.backward = backward  # type: ignore[method-assign]
        return engine


@dataclass(frozen=True)
class Resumed:
    """Two runs of a training: `whole` without a break, `resumed` after one."""

    whole: TrainJob
    resumed: TrainJob

    @property
    def identical(self) -> bool:
        """Whether both ended with the same weights, to the bit."""
        return distance(trained_weights(self.whole), trained_weights(self.resumed)) == 0.0


def interrupt(
    inputs: Path, folder: Path, config: TrainConfig | GroupTrainConfig, seed: str
) -> Resumed:
    """Trains to the end; and again, dying in a random micro-batch and going on.

    It goes on from the newest resume state that the dead run left, or anew where there is none.
    """
    whole = make_job(inputs, folder / "whole", config)
    undisturbed = Mortal(whole)
    undisturbed.run()
    last = random.Random(seed).randint(1, undisturbed.gradients)
    dying = make_job(inputs, folder / "dying", config)
    try:
        Mortal(dying, last).run()
    except Died:
        pass
    else:
        raise AssertionError(f"the training outlived its gradient {last}")
    states = sorted(dying.resume_out.glob("step-*"))
    resumed = make_job(inputs, folder / "resumed", config, states[-1] if states else None)
    train(resumed, load_language_model(resumed.model), load_tokenizer(resumed.model))
    return Resumed(whole, resumed)
