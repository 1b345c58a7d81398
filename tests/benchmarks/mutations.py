"""What share of a uniform random sample of mutants the tests notice: `make test-mutations`.

mutmut itself tests all mutants, or those that it is given by name. Keys:

- `mutants`: the sample.
- `killed_fraction`: share of it that a test failed on, or that hung every time it was tried; with
  Wilson's 95% interval, `killed_low` and `killed_high`.
- `timeouts`: those among the killed that hung. A mutant hangs where its tests take four times as
  long as without it, and 40 seconds more.
- `equivalent`: survivors that `equivalent_mutants.json` explains: no input tells them from the
  code. `killed_of_different`: the share among all but those.

The survivors that nothing explains are printed first, as changes of the code.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code

from tests.benchmarks.figures import report

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.json")


@dataclass(frozen=True)
class Mutant:
    """A mutant of the sample, and what mutmut found of it."""

    name: str
    path: Path
    status: str

    @property
    def killed(self) -> bool:
        return self.status in ("killed", "timeout")

    @property
    def function(self) -> str:
        return self.name.rpartition("__mutmut_")[0]

    def changes(self) -> str:
        """The lines of the code that it takes out and puts in."""
        lines = get_diff_for_mutant(self.name, path=self.path).splitlines()
        return "\n".join(
            line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")
        )

    def explained(self, known: dict[str, list[dict[str, str]]]) -> bool:
        """Whether the kept list holds this change of this function."""
        lines = [line[1:].strip() for line in self.changes().splitlines() if line[0] == "+"]
        return any(row["becomes"] == " ".join(lines) for row in known.get(self.function, []))


def tried() -> dict[str, tuple[Path, int | None]]:
    """The file of every mutant by name, and the exit code of its tests, None before they ran."""
    every, _ = mutmut.collect_source_file_mutation_data(mutant_names=[])
    return {name: (data.path, code) for data, name, code in every}


def sample(count: int, seed: int) -> list[Mutant]:
    """Makes all mutants and runs the tests on some of them."""
    # Hypothesis' own profile for CI: without deadlines, which a busy machine misses.
    os.environ |= {"CI": "1", "OMP_NUM_THREADS": "1"}
    shutil.rmtree("mutants", ignore_errors=True)
    Path("mutants").mkdir()
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    workers = os.cpu_count() or 1
    mutmut.create_mutants(workers)
    names = random.Random(seed).sample(sorted(tried()), count)
    mutmut._run(names, workers)
    found = tried()
    hung = [name for name in names if status_by_exit_code[found[name][1]] == "timeout"]
    if hung:  # for good, or only while the machine was busy
        mutmut._run(hung, 1)
    return [
        Mutant(name, path, status_by_exit_code[code])
        for name, (path, code) in tried().items()
        if code is not None
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutants", type=int, default=640)
    parser.add_argument("--seed", type=int, default=100)
    chosen = parser.parse_args()
    mutants = sample(chosen.mutants, chosen.seed)
    # What is imported before the sample is tested would be tested without its mutants.
    from dynolab.statistics import share_interval

    known = json.loads(EQUIVALENT.read_text())
    survivors = [mutant for mutant in mutants if not mutant.killed]
    unexplained = [mutant for mutant in survivors if not mutant.explained(known)]
    for mutant in unexplained:
        print(f"{mutant.name}: {mutant.status}\n{mutant.changes()}\n")
    whole = share_interval(len(mutants) - len(survivors), len(mutants))
    equivalent = len(survivors) - len(unexplained)
    figures: dict[str, float] = {
        "mutants": len(mutants),
        "killed_fraction": whole.mean,
        "killed_low": whole.low,
        "killed_high": whole.high,
        "timeouts": sum(mutant.status == "timeout" for mutant in mutants),
        "equivalent": equivalent,
        "killed_of_different": (len(mutants) - len(survivors)) / (len(mutants) - equivalent),
    }
    report(figures, at_least={"mutants": 300, "killed_fraction": 0.93})


if __name__ == "__main__":
    main()
