"""Training beside TRL's trainers: same model, same rows in the same order, one process each.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.training

FOLDER holds `models/tinystories-656k`, `models/pythia-tokenizer` and `data/hh`. Prints one JSON
object on its last line; a figure of the randomly initialised Pythia-70m shape ends in `_70m`.

- `dpo_throughput_vs_trl`, `sft_throughput_vs_trl`: pairs (rows) a second over TRL's, each the
  median over steps after warm-up; the ratio is the median over rounds in which each goes first
  in turn, and `..._spread` its largest less its smallest.
- `grpo_throughput_vs_trl`: the same of completions sampled, rewarded and learned from.
- `dpo_peak_memory_vs_trl` and the like: most resident memory above the level after loading, over
  TRL's.
- `zero2_two_ranks_over_one`: DPO pairs a second of two ZeRO-2 ranks over one, one thread each, in
  steps of 16 pairs as in the built-in study; `..._of_4`: in steps of 4, as beside TRL, where what
  a step costs whatever its size weighs more.
- `resume_identical`: the objectives (a list) of which a small training that died in a random
  micro-batch after a resume state and went on from it ended with the weights of one left alone, to
  the bit; `resume_differs`: how many others there are.

TRL runs at its best settings: no gradient checkpointing, reference log-probabilities precomputed,
no dropout, nothing logged or saved, SDPA, generation with its cache. Preparing the data set is
outside on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dynolab.rollouts.rewards import ALLOWED
from tests.benchmarks.figures import last_line, ratio, report
from tests.benchmarks.training_work import BATCH, RANKS_BATCH, STEPS

Figures = list[dict[str, float]]
Run = Callable[[], dict[str, float]]

ROUNDS = 5
AT_LEAST = {
    "dpo_throughput_vs_trl": 2.0,
    "sft_throughput_vs_trl": 1.5,
    "grpo_throughput_vs_trl": 1.0,
    "zero2_two_ranks_over_one": 1.5,
}
AT_MOST = {"dpo_peak_memory_vs_trl": 0.8, "resume_differs": 0}


def alone(folder: Path, *arguments: str, threads: int | None = None) -> dict[str, float]:
    """One run in a process of its own."""
    printed = last_line("training", "--one", str(folder), *arguments, threads=threads)
    figures: dict[str, float] = json.loads(printed)
    return figures


def against_trl(folder: Path, model: str, method: str, rounds: int) -> dict[str, float]:
    mine, theirs = in_turns(
        lambda: alone(folder, "ours", method, model),
        lambda: alone(folder, "trl", method, model),
        rounds,
    )
    suffix = "" if model == "tinystories" else f"_{model}"
    return {
        **_ratio(f"{method}_throughput_vs_trl{suffix}", mine, theirs, "speed"),
        **_ratio(f"{method}_peak_memory_vs_trl{suffix}", mine, theirs, "peak"),
        f"{method}_per_s{suffix}": statistics.median(run["speed"] for run in mine),
        f"{method}_per_s_trl{suffix}": statistics.median(run["speed"] for run in theirs),
    }


def over_ranks(folder: Path, rounds: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for batch, suffix in ((RANKS_BATCH, ""), (BATCH, f"_of_{BATCH}")):
        sizes = [("dpo", "tinystories", ranks, str(batch)) for ranks in "21"]
        two, one = in_turns(
            *(partial(alone, folder, "ours", *size, threads=1) for size in sizes), rounds
        )
        figures |= _ratio(f"zero2_two_ranks_over_one{suffix}", two, one, "speed")
    return figures


def in_turns(first: Run, second: Run, rounds: int) -> tuple[Figures, Figures]:
    """What both measure in every round; each goes first in every other one."""
    measured: tuple[Figures, Figures] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            measured[which].append((first, second)[which]())
    return measured


def _ratio(name: str, ours: Figures, theirs: Figures, figure: str) -> dict[str, float]:
    return ratio(name, [run[figure] for run in ours], [run[figure] for run in theirs])


def resumed(folder: Path) -> dict[str, object]:
    """Objectives whose resumed training ends with the undisturbed one's weights, and the others."""
    from tests.training.every_objective import ON_GROUPS, ON_ROWS, small_training
    from tests.training.interrupted import interrupt
    from tests.training.small import make_files

    os.environ[ALLOWED] = "tests.training.rewards"
    folder.mkdir()
    make_files(folder)
    names = [*ON_ROWS, *ON_GROUPS]
    identical = [
        name
        for name in names
        if interrupt(folder, folder / name, small_training(name), seed=name).identical
    ]
    return {"resume_identical": identical, "resume_differs": len(names) - len(identical)}


def one(folder: Path, who: str, method: str, model: str, *sizes: str) -> dict[str, float]:
    """One run; `sizes`: of ours, the number of ranks and the examples of a step."""
    if who == "trl":
        from tests.benchmarks.training_trl import trl

        return trl(method, folder / model, folder)
    from tests.benchmarks.training_ours import ours

    return ours(method, folder / model, folder, *map(int, sizes))


def _of_both(bars: dict[str, float]) -> dict[str, float]:
    """The bars of both models."""
    return bars | {f"{name}_70m": bound for name, bound in bars.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs="+")
    parser.add_argument("--methods", nargs="*", default=["dpo", "sft", "grpo", "ranks"])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="Of every comparison.")
    arguments = parser.parse_args()
    if arguments.one:
        folder, *rest = arguments.one
        print(json.dumps(one(Path(folder), *rest)))
        return
    from tests.benchmarks.training_inputs import prepare

    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder)
        for method, model in STEPS:
            if method in arguments.methods:
                figures |= against_trl(folder, model, method, arguments.rounds)
                print(json.dumps(figures), file=sys.stderr, flush=True)
        if "ranks" in arguments.methods:
            figures |= over_ranks(folder, arguments.rounds)
        resumptions = resumed(folder / "resumed")
    report(figures | resumptions, at_least=_of_both(AT_LEAST), at_most=_of_both(AT_MOST))


if __name__ == "__main__":
    main()
