"""A trainer whose weights FSDP2 shards, probed and not; started by `torchrun`.

accelerate shards on GPUs alone by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate import FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.forces import ForceCallback
from tests.integrations.test_callback import plain, probes

INIT = AcceleratorState.__init__


def sharded(self: AcceleratorState, *arguments: Any, **named: Any) -> None:
    INIT(self, *arguments, **named)
    self.distributed_type = DistributedType.FSDP
    self.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="FULL_STATE_DICT",
        cpu_ram_efficient_loading=False,
    )


if __name__ == "__main__":
    AcceleratorState.__init__ = sharded  # type: ignore[method-assign]
    for name in ("watched", "alone"):
        folder = Path(sys.argv[1], name)
        trainer = plain(folder)
        callback = ProbeCallback(trainer, probes(), every=2)
        if name == "watched":
            trainer.add_callback(callback)
        trainer.train()
        assert callback.off == ""
        assert isinstance(trainer.accelerator.unwrap_model(trainer.model), FSDPModule)
        trainer.save_model(str(folder / "model"))
    with pytest.raises(ConfigError, match="fsdp"):
        ForceCallback(trainer)
    distributed.leave()
