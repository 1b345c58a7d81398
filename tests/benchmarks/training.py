"""Training beside TRL's trainers: same model, same rows in the same order, one process each.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.training

FOLDER holds `models/tinystories-656k`, `models/pythia-tokenizer` and `data/hh`. Prints one JSON
object on its last line; a figure of the randomly initialised Pythia-70m shape ends in `_70m`.

- `dpo_throughput_vs_trl`, `sft_throughput_vs_trl`: pairs (rows) a second over TRL's, each the
  median over steps after warm-up; the ratio is the median over interleaved rounds, and
  `..._spread` its largest less its smallest.
- `grpo_throughput_vs_trl`: the same of completions sampled, rewarded and learned from.
- `dpo_peak_memory_vs_trl` and the like: most resident memory above the level after loading, over
  TRL's.
- `zero2_two_ranks_over_one`: DPO pairs a second of two ZeRO-2 ranks over one, one thread each, in
  steps of 16 pairs as in the built-in study; `..._of_4`: in steps of 4, as beside TRL, where what
  a step costs whatever its size weighs more.
- `resume_identical`: the objectives (a list) of which a small training that died in a random
  micro-batch and went on ended with the weights of one left alone, to the bit.

TRL runs at its best settings: no gradient checkpointing, reference log-probabilities precomputed,
no dropout, nothing logged or saved, SDPA, generation with its cache. Preparing the data set is
outside on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from dynolab.rollouts.rewards import ALLOWED
from tests.benchmarks.training_work import BATCH, RANKS_BATCH, STEPS

ROUNDS = {"tinystories": 5, "70m": 3}
AT_LEAST = {
    "dpo_throughput_vs_trl": 2.0, "sft_throughput_vs_trl": 1.5, "grpo_throughput_vs_trl": 1.0,
    "zero2_two_ranks_over_one": 1.5,
}  # fmt: skip
AT_MOST = {"dpo_peak_memory_vs_trl": 0.8}


def alone(folder: Path, *arguments: str, threads: int | None = None) -> dict[str, float]:
    """One run in a process of its own."""
    environment = dict(os.environ)
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "tests.benchmarks.training", "--one", str(folder), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def against_trl(folder: Path, model: str, method: str, rounds: int) -> dict[str, float]:
    runs = [(alone(folder, "ours", method, model), alone(folder, "trl", method, model))
            for _ in range(rounds)]  # fmt: skip
    suffix = "" if model == "tinystories" else f"_{model}"
    return {
        **_ratio(f"{method}_throughput_vs_trl{suffix}", runs, "speed"),
        **_ratio(f"{method}_peak_memory_vs_trl{suffix}", runs, "peak"),
        f"{method}_per_s{suffix}": statistics.median(mine["speed"] for mine, _ in runs),
        f"{method}_per_s_trl{suffix}": statistics.median(theirs["speed"] for _, theirs in runs),
    }


def over_ranks(folder: Path, rounds: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for batch, suffix in ((RANKS_BATCH, ""), (BATCH, f"_of_{BATCH}")):
        runs = []
        for _ in range(rounds):
            two, one = (
                alone(folder, "ours", "dpo", "tinystories", ranks, str(batch), threads=1)
                for ranks in "21"
            )
            runs.append((two, one))
        found |= _ratio(f"zero2_two_ranks_over_one{suffix}", runs, "speed")
    return found


def _ratio(
    name: str, runs: list[tuple[dict[str, float], dict[str, float]]], figure: str
) -> dict[str, float]:
    """Median over rounds of the first's figure over the second's, and how far the rounds differ."""
    ratios = [one[figure] / other[figure] for one, other in runs]
    return {name: statistics.median(ratios), f"{name}_spread": max(ratios) - min(ratios)}


def resumed(folder: Path) -> list[str]:
    """Objectives whose interrupted training ends with the undisturbed one's weights."""
    from tests.training.every_objective import ON_GROUPS, ON_ROWS, small_training
    from tests.training.interrupted import interrupt
    from tests.training.small import make_files

    os.environ[ALLOWED] = "tests.training.rewards"
    folder.mkdir()
    make_files(folder)
    return [
        name
        for name in [*ON_ROWS, *ON_GROUPS]
        if interrupt(folder, folder / name, small_training(name), seed=name).identical
    ]


def one(folder: Path, who: str, method: str, model: str, *sizes: str) -> dict[str, float]:
    """One run; `sizes`: of ours, the number of ranks and the examples of a step."""
    if who == "trl":
        from tests.benchmarks.training_trl import trl

        return trl(method, folder / model, folder)
    from tests.benchmarks.training_ours import ours

    return ours(method, folder / model, folder, *map(int, sizes))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs="+")
    parser.add_argument("--methods", nargs="*", default=["dpo", "sft", "grpo", "ranks"])
    parser.add_argument("--rounds", type=int, help="of every comparison; default: see ROUNDS")
    arguments = parser.parse_args()
    if arguments.one:
        folder, *rest = arguments.one
        print(json.dumps(one(Path(folder), *rest)))
        return
    from tests.benchmarks.training_inputs import prepare

    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        for method, model in STEPS:
            if method in arguments.methods:
                rounds = arguments.rounds or ROUNDS[model]
                found |= against_trl(folder, model, method, rounds)
                print(json.dumps(found), file=sys.stderr, flush=True)
        if "ranks" in arguments.methods:
            found |= over_ranks(folder, arguments.rounds or ROUNDS["tinystories"])
        identical = resumed(folder / "resumed")
    figures: dict[str, object] = {name: float(f"{value:.4g}") for name, value in found.items()}
    bars = {name: [bound, value >= bound] for name, value in found.items()
            for key, bound in AT_LEAST.items() if name.removesuffix("_70m") == key}  # fmt: skip
    bars |= {name: [bound, value <= bound] for name, value in found.items()
             for key, bound in AT_MOST.items() if name.removesuffix("_70m") == key}  # fmt: skip
    print(json.dumps(figures | {"resume_identical": identical, "bars": bars}))


if __name__ == "__main__":
    main()
