"""A rank program: trains by every ZeRO stage, whole and resumed, in one start of the ranks.

Where a case names a state of other ranks or another stage, it goes on from that, too.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import psutil

from dynolab import distributed
from dynolab.likelihood import decoder
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.deepspeed_engine import init_ranks
from tests.training.small import run_small, state


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    inputs = Path(job["inputs"])
    init_ranks()
    gc.freeze()  # ZeRO-3 collects garbage whenever it begins, and would look at every module
    listening = [
        f"{at.laddr.ip}:{at.laddr.port}"
        for process in (psutil.Process(), psutil.Process().parent())
        for at in process.net_connections(kind="inet")
        if at.status == psutil.CONN_LISTEN
    ]
    (inputs / f"listening-{distributed.rank()}.json").write_text(json.dumps(listening))
    bound = decoder.LOGITS_BYTES
    for name, settings in job["cases"].items():
        decoder.LOGITS_BYTES = job["logits_bytes"].get(name, bound)
        kind = GroupTrainConfig if "completions" in settings else TrainConfig
        config = kind.model_validate(settings)
        folder = inputs / name
        whole = run_small(inputs, folder / "whole", config)
        run_small(inputs, folder / "resumed", config, state(whole, 3))
        if (other := job.get("elsewhere", {}).get(name)) is not None:
            run_small(inputs, folder / "elsewhere", config, inputs / other)
        distributed.barrier()


if __name__ == "__main__":
    main()
