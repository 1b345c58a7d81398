"""Runs mutmut on a uniform random sample of all mutants: `make test-mutations`.

mutmut itself tests all mutants or those that it is given by name.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=640)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    # Hypothesis' own profile for CI: without deadlines, which a busy machine misses.
    os.environ |= {"CI": "1", "OMP_NUM_THREADS": "1"}
    shutil.rmtree("mutants", ignore_errors=True)
    from mutmut import __main__ as mutmut

    Path("mutants").mkdir()
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.create_mutants(chosen.workers)
    every = mutmut.collect_source_file_mutation_data(mutant_names=[])[0]
    names = sorted(name for _, name, _ in every)
    sample = random.Random(chosen.seed).sample(names, min(chosen.mutants, len(names)))
    mutmut._run(sample, chosen.workers)


if __name__ == "__main__":
    main()
