"""A trainer over ranks with probes; started by `torchrun`, writes into the folder it is given."""

from __future__ import annotations

import sys
from pathlib import Path

from dynolab import distributed
from dynolab.integrations.callback import ProbeCallback
from tests.integrations.test_callback import STEPS, plain, probes

if __name__ == "__main__":
    trainer = plain(Path(sys.argv[1]))
    trainer.add_callback(ProbeCallback(trainer, probes(), every=STEPS))
    trainer.train()
    trainer.save_model(str(Path(sys.argv[1]) / "model"))
    distributed.leave()  # else the group's threads can abort a process that exits
