"""How ready the code is for GPUs, as far as a machine without one can tell.

    python -m tests.benchmarks.gpu_ready

Needs a C++ compiler. Prints one JSON object on its last line.

- `proxy_paths`: paths of the library that ran on the pretended GPU (`tests/gpu`);
  `proxy_violations`: operations on tensors of two devices, and paths that an error ended.
- `nondeterministic_ops`: lines of trainings that add in an order which a GPU does not repeat;
  `nondeterministic_ops_elsewhere`: the same of all other paths, where nothing is replayed.
- `syncs_per_micro_batch_dpo`, `blocking_copies_per_micro_batch`: how often a step of one
  micro-batch waits for the GPU, DPO, and for a transfer, the most of six objectives.
- `bytes_per_parameter_zero0_one_rank`: weights, gradients and AdamW's state that one rank holds.
- `audit_bytes_per_parameter`: most bytes of tensors alive during an audit of two pairs, the weights
  among them, on a shape whose parameters outweigh its activations.
- `bf16_margin_at_step_0`: largest DPO margin of a training in bf16 that does not move, in nats,
  while every row is new to it; `bf16_margin_in_second_pass`: afterwards, in other micro-batches.
- `tf32_noticed`: whether the force engine refuses rounded float32 products.
- `forces_tokens_at_410m`: the longest answer whose force map fits beside Pythia-410m where 80 GB
  are free, by the engine's own count of bytes.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from dynolab.audit.audit import audit_pairs
from dynolab.costs.live_bytes import LiveBytes
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function.rules import find_rules
from dynolab.forces.map.costs import factor_bytes
from dynolab.objectives.dpo import DPO, DPOConfig
from tasks.runtime.launch.launcher import launch_ranks
from tests.benchmarks.figures import gather, report
from tests.benchmarks.pythia import PYTHIA_410M, pythia
from tests.forces.small_models import neox
from tests.gpu.compiled_guard import compiled_guard
from tests.gpu.test_walks import PATHS, walked

ROOT = Path(__file__).parents[2]
FREE = 80 * 10**9
WIDE = {"vocab_size": 512, "num_hidden_layers": 4}


def walks() -> dict[str, float]:
    """The pretended GPU's."""
    with tempfile.TemporaryDirectory() as folder:
        guard = compiled_guard(Path(folder))
        groups = {group: walked(guard, group) for group in PATHS}
        steps = walked(guard, "micro_batch")
    every = [path for paths in groups.values() for path in paths.values()]
    training = {line for path in groups["training"].values() for line in path["unordered"]}
    anywhere = {line for path in every for line in path["unordered"]}
    return {
        "proxy_paths": float(len(every)),
        "proxy_violations": float(sum(bool(path["error"]) + len(path["mixed"]) for path in every)),
        "nondeterministic_ops": float(len(training)),
        "nondeterministic_ops_elsewhere": float(len(anywhere - training)),
        "syncs_per_micro_batch_dpo": steps["dpo"]["figures"]["waits"],
        "blocking_copies_per_micro_batch": max(
            step["figures"]["copies"] for step in steps.values()
        ),
    }


def ranks() -> dict[str, float]:
    """Of a rank alone, and of two in bf16."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as home:
        for count in (1, 2):
            folder = Path(home) / str(count)
            folder.mkdir()
            (folder / "job.json").write_text(json.dumps({"folder": str(folder)}))
            launch_ranks(
                "tests.benchmarks.gpu_ready_rank",
                folder / "job.json",
                ranks=count,
                logs=folder / "logs",
                environment={"PYTHONPATH": str(ROOT)},
                while_running=lambda: None,
            )
            figures |= json.loads((folder / "figures.json").read_text())
    return figures


def tf32() -> dict[str, float]:
    """Whether TF32 is refused."""
    torch.set_float32_matmul_precision("high")
    try:
        PolicyFunction(neox(dtype=torch.float32))
    except ConfigError:
        return {"tf32_noticed": 1.0}
    finally:
        torch.set_float32_matmul_precision("highest")
    return {"tf32_noticed": 0.0}


def longest_answer() -> dict[str, float]:
    """One token's factors must fit into an eighth of the half of what is free (`plan_tiles`)."""
    policy = PolicyFunction(pythia(**PYTHIA_410M))
    rules = find_rules(policy, set(policy.weights))
    room = FREE // 2 // 8
    length = 1
    while factor_bytes(rules, (1, length + 1), 4) <= room:
        length += 1
    return {"forces_tokens_at_410m": float(length)}


def audit() -> dict[str, float]:
    """From the loading of the model on."""

    def pair(first: int) -> EncodedExample:
        sides = (Encoded(tuple(range(start, start + 16)), 8) for start in (first, first + 20))
        return EncodedExample(str(first), *sides)

    with LiveBytes() as live:
        policy = PolicyFunction(pythia(**WIDE))
        audit_pairs(policy, [pair(3), pair(50)], DPO(DPOConfig()))
    size = sum(weight.numel() for weight in policy.weights.values())
    return {"audit_bytes_per_parameter": live.most / size}


def main() -> None:
    figures = gather([longest_answer, audit, tf32, ranks, walks])
    report(
        figures,
        at_least={"proxy_paths": 40, "tf32_noticed": 1, "forces_tokens_at_410m": 2000},
        at_most={
            "proxy_violations": 0,
            "nondeterministic_ops": 0,
            "syncs_per_micro_batch_dpo": 4,
            "blocking_copies_per_micro_batch": 1,
            "bytes_per_parameter_zero0_one_rank": 16.5,
            "audit_bytes_per_parameter": 14,
            "bf16_margin_at_step_0": 1e-6,
        },
    )


if __name__ == "__main__":
    main()
