"""One batch of four pairs over any number of ranks, accounted for; started by `torchrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dynolab import distributed
from dynolab.integrations.forces import ForceCallback
from tests.integrations.test_trained import dpo

if __name__ == "__main__":
    batch = 4 // int(os.environ["WORLD_SIZE"])
    # Adam's first step is the gradient's sign, which rounding decides where it is near zero.
    trainer = dpo(
        Path(sys.argv[1]),
        per_device_train_batch_size=batch,
        max_steps=2,
        learning_rate=0.1,
        optim="sgd",
        optim_args="momentum=0.9",
    )
    trainer.add_callback(ForceCallback(trainer, every=1))
    trainer.train()
    distributed.leave()  # else the group's threads can abort a process that exits
