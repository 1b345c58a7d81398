"""A force map of a real shape in little memory.

    python -m tests.benchmarks.at_size

Prints one JSON object on its last line. A random Pythia-160m shape with its 50,304 tokens; 20 pairs
of HH's lengths (prompt 134, chosen 62, rejected 47 tokens) update under DPO, and the chosen answer
of each is observed. The process may hold 1/17 of 80 GB for its data: what 2.8b has on one GPU, in
proportion.

- `forces_160m_limited`: whether the map of the last block, the final norm and the head is computed
  within that limit (RLIMIT_DATA), factors and tiles by the memory that is then free.
- `seconds_160m_limited`, `peak_gb_160m_limited`, `teraflop_160m_limited`: that map's time, the most
  that is resident and the counted operations; `teraflop_160m_whole`: those of the whole map.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import psutil

from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction, force_map
from dynolab.forces.function.layers import last_layers
from dynolab.forces.map.costs import route_flops, shapes_of
from dynolab.forces.map.problem import pose
from dynolab.objectives import DPO, DPOConfig
from dynolab.training.step_record import RecordedExample
from tests.benchmarks.figures import report
from tests.benchmarks.pythia import PYTHIA_160M, pythia
from tests.benchmarks.resident import peak_above_start

LIMIT = 80 * 10**9 // 17
PROMPT, CHOSEN, REJECTED = 134, 62, 47
OBJECTIVE = DPO(DPOConfig())


def examples(count: int) -> list[RecordedExample]:
    """Random tokens, with references near a uniform policy's log-probabilities."""
    random = np.random.default_rng(0)

    def response(tokens: int) -> Encoded:
        return Encoded(tuple(random.integers(1, 50_000, PROMPT + tokens).tolist()), PROMPT)

    def scores(tokens: int) -> list[float]:
        return random.normal(-11, 0.5, tokens).tolist()

    return [
        RecordedExample(
            id=str(number),
            chosen=response(CHOSEN),
            rejected=response(REJECTED),
            chosen_reference=scores(CHOSEN),
            rejected_reference=scores(REJECTED),
        )
        for number in range(count)
    ]


def limited(pairs: int) -> dict[str, float]:
    """The figures of one map; ends with an error where the memory does not suffice."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    figures: dict[str, float] = {}
    before = psutil.Process().memory_info().rss

    def work() -> None:
        policy = PolicyFunction(pythia(**PYTHIA_160M))
        updating = examples(pairs)
        observed = [example.chosen for example in updating]
        moving = last_layers(policy, 1)
        figures.update(counted(policy, observed, updating[:1], moving, pairs))
        print(json.dumps(figures), flush=True)
        began = time.perf_counter()
        made = force_map(policy, observed, updating, OBJECTIVE, parameters=moving)
        figures["seconds_160m_limited"] = time.perf_counter() - began
        assert np.isfinite(made.force).all()

    figures["peak_gb_160m_limited"] = (before + peak_above_start(work)) / 1e9
    return figures


def counted(
    policy: PolicyFunction,
    observed: list[Encoded],
    one: list[RecordedExample],
    moving: set[str],
    pairs: int,
) -> dict[str, float]:
    """Operations of route B, in 1e12, by the rules that the engine finds on one pair."""
    (example,) = one
    sides = shapes_of(observed), shapes_of([example.chosen, example.rejected]) * pairs
    counts = {}
    for name, parameters in (("limited", moving), ("whole", None)):
        problem = pose(
            policy,
            observed[:1],
            one,
            OBJECTIVE,
            update=1.0,
            at=None,
            observed_temperature=1.0,
            parameters=parameters,
        )
        counts[f"teraflop_160m_{name}"] = route_flops(problem.kernel.rules, *sides)["both_sides"]
    return {name: count / 1e12 for name, count in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--inside", action="store_true")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(limited(arguments.pairs)))
        return
    command = [sys.executable, "-m", "tests.benchmarks.at_size", "--inside"]
    done = subprocess.run(
        [*command, "--pairs", str(arguments.pairs)], stdout=subprocess.PIPE, text=True
    )
    figures: dict[str, float] = {"forces_160m_limited": float(done.returncode == 0)}
    if done.stdout:
        figures |= json.loads(done.stdout.splitlines()[-1])
    report(figures, at_least={"forces_160m_limited": 1})


if __name__ == "__main__":
    main()
