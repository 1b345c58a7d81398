"""Watched trainings over ranks that each hold all weights; started by `torchrun`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dynolab import distributed
from dynolab.forces.ledger import pass_again
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from tests.integrations.callback_fsdp import SLICE
from tests.integrations.test_callback import STEPS, plain, probes
from tests.integrations.test_trained import SGD, dpo

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pass_again.SLICE = SLICE
    probed = plain(folder / "probed")
    probed.add_callback(ProbeCallback(probed, probes(), every=STEPS))
    probed.train()
    probed.save_model(str(folder / "probed" / "model"))
    batch = 4 // int(os.environ["WORLD_SIZE"])
    accounted = dpo(folder / "accounted", per_device_train_batch_size=batch, max_steps=2, **SGD)
    accounted.add_callback(ForceCallback(accounted, every=1))
    accounted.train()
    distributed.leave()
