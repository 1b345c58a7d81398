"""How ready the code is for GPUs, as far as a machine without one can tell.

    python -m tests.benchmarks.gpu_ready

Prints one JSON object on its last line.

- `proxy_paths`: paths of the library that ran on the pretended GPU (`tests/gpu`);
  `proxy_violations`: operations on tensors of two devices, and paths that an error ended.
- `nondeterministic_ops`: lines of trainings that add in an order which a GPU does not repeat;
  `nondeterministic_ops_elsewhere`: the same of all other paths, where nothing is replayed.
- `syncs_per_micro_batch_dpo`, `blocking_copies_per_micro_batch`: how often a step of one
  micro-batch waits for the GPU, DPO, and for a transfer, the most of six objectives.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.figures import main
from tests.gpu.test_paths import walked


def walks(_: Path) -> dict[str, float]:
    """The pretended GPU's."""
    groups = walked()
    steps = [path["figures"] for path in groups["micro_batch"].values()]
    paths = [path for name in ("training", "forces", "sampling") for path in groups[name].values()]
    training = {line for path in groups["training"].values() for line in path["unordered"]}
    anywhere = {line for path in paths for line in path["unordered"]}
    return {
        "proxy_paths": len(paths),
        "proxy_violations": sum(bool(path["error"]) + len(path["mixed"]) for path in paths),
        "nondeterministic_ops": len(training),
        "nondeterministic_ops_elsewhere": len(anywhere - training),
        "syncs_per_micro_batch_dpo": groups["micro_batch"]["dpo"]["figures"]["waits"],
        "blocking_copies_per_micro_batch": max(step["copies"] for step in steps),
    }


if __name__ == "__main__":
    main(
        {"walks": walks},
        at_least={"proxy_paths": 20},
        at_most={
            "proxy_violations": 0,
            "nondeterministic_ops": 0,
            "syncs_per_micro_batch_dpo": 4,
            "blocking_copies_per_micro_batch": 1,
        },
    )
