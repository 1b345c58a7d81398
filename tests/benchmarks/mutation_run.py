"""Runs mutmut on a uniform random sample of all mutants: `make test-mutations`.

mutmut itself tests all mutants, or those that it is given by name.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from pathlib import Path

from mutmut import __main__ as mutmut
from mutmut.stats import status_by_exit_code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=640)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    # Hypothesis' own profile for CI: without deadlines, which a busy machine misses.
    os.environ |= {"CI": "1", "OMP_NUM_THREADS": "1"}
    shutil.rmtree("mutants", ignore_errors=True)
    Path("mutants").mkdir()
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(chosen.workers)
    sample = random.Random(chosen.seed).sample(sorted(_tried()), chosen.mutants)
    mutmut._run(sample, chosen.workers)
    tried = _tried()
    hung = [name for name in sample if status_by_exit_code[tried[name]] == "timeout"]
    if hung:  # for good, or only while the machine was busy
        mutmut._run(hung, 1)


def _tried() -> dict[str, int | None]:
    """The exit code of every mutant's tests by name, None before they ran."""
    every, _ = mutmut.collect_source_file_mutation_data(mutant_names=[])
    return {name: code for _, name, code in every}


if __name__ == "__main__":
    main()
