"""A training that dies somewhere and is taken up again, beside the same one left alone."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.engine import Engine
from dynolab.training.job import TrainJob
from dynolab.training.loop import Trainer
from models.language import load_language_model, load_tokenizer
from tests.training.small import apart, make_job


class Died(Exception):
    """The training ends here, in the middle of a step."""


class Mortal(Trainer):
    """Counts gradients, notes which resume state it reads, and dies as a gradient is added.

    `first_after_state` is the number of the first gradient that a resume state came before.
    """

    def __init__(self, job: TrainJob, last: int | None = None) -> None:
        super().__init__(job, load_language_model(job.model), load_tokenizer(job.model))
        self.last = last
        self.gradients = 0
        self.first_after_state: int | None = None
        self.resumed_from: int | None = None

    def _build_engine(self, logits: ResponseLogits) -> Engine:
        engine = super()._build_engine(logits)
        add, read = engine.backward, engine.load

        def backward(loss: Tensor) -> None:
            add(loss)
            self.gradients += 1
            if self.first_after_state is None and any(self.job.resume_out.glob("step-*")):
                self.first_after_state = self.gradients
            if self.gradients == self.last:
                raise Died

        def load(folder: Path) -> None:
            read(folder)
            self.resumed_from = int(folder.parent.name.removeprefix("step-"))

        engine.backward, engine.load = backward, load  # type: ignore[method-assign]
        return engine


@dataclass(frozen=True)
class Resumed:
    """Two runs of a training: `whole` without a break, `resumed` from a state of a dead one.

    `resumed_from` is how many steps had been done in the state that was read; None: none was read.
    """

    whole: TrainJob
    resumed: TrainJob
    resumed_from: int | None

    @property
    def identical(self) -> bool:
        """Whether a state was read, and both ended with the same weights, to the bit."""
        return self.resumed_from is not None and apart(self.whole, self.resumed) == 0.0


def interrupt(
    inputs: Path, folder: Path, config: TrainConfig | GroupTrainConfig, seed: str
) -> Resumed:
    """Trains to the end; and again, dying in a random micro-batch and going on.

    It dies after its first resume state and goes on from its newest. The process's own random
    numbers start alike in the first two runs and elsewhere in the one that goes on.
    """
    whole = make_job(inputs, folder / "whole", config)
    undisturbed = Mortal(whole)
    seed_generators(0)
    undisturbed.run()
    assert undisturbed.first_after_state, "the training adds no gradient after a resume state"
    last = random.Random(seed).randint(undisturbed.first_after_state, undisturbed.gradients)
    dying = make_job(inputs, folder / "dying", config)
    seed_generators(0)
    with pytest.raises(Died):
        Mortal(dying, last).run()
    newest = max(dying.resume_out.glob("step-*"))
    resumed = Mortal(make_job(inputs, folder / "resumed", config, newest))
    seed_generators(1)
    resumed.run()
    return Resumed(whole, resumed.job, resumed.resumed_from)


def seed_generators(seed: int) -> None:
    """Of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
