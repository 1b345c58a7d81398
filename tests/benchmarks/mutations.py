"""What share of a random sample of mutants the tests notice: `python -m tests.benchmarks.mutations`

reads what `make test-mutations` left under `mutants/`. Keys:

- `mutants`: the sample; `mutants_<part>` of a part of the code.
- `killed_fraction`: share of it that a test failed on, or that hung every time it was tried; with
  Wilson's 95% interval, `killed_low` and `killed_high`. `killed_fraction_<part>`.
- `timeouts`: those among the killed that hung. A mutant hangs where its tests take four times as
  long as without it, and 40 seconds more.
- `equivalent`: survivors that `equivalent_mutants.json` explains: no input tells them from the
  code. `killed_of_different`: the share among all but those.
- `bars`: [bound, met].

The survivors that nothing explains are printed first, as changes of the code.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files

from dynolab.statistics import share_interval
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
    def part(self) -> str:
        """The package or module that it is in."""
        room = self.path.parts[1]
        whole = room in ("objectives", "forces", "store")
        return room if whole else "_".join(self.path.with_suffix("").parts[-2:])

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


def sample() -> Iterator[Mutant]:
    """The mutants that were tried."""
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if code is not None:
                yield Mutant(name, path, status_by_exit_code[code])


def main() -> None:
    mutants = list(sample())
    if not mutants:
        sys.exit("no mutant was tried; run `make test-mutations` first")
    known = json.loads(EQUIVALENT.read_text())
    survivors = [mutant for mutant in mutants if not mutant.killed]
    unexplained = [mutant for mutant in survivors if not mutant.explained(known)]
    for mutant in unexplained:
        print(f"{mutant.name}: {mutant.status}\n{mutant.changes()}\n")
    every = Counter(mutant.part for mutant in mutants)
    killed = Counter(mutant.part for mutant in mutants if mutant.killed)
    whole = share_interval(killed.total(), len(mutants))
    equivalent = len(survivors) - len(unexplained)
    figures: dict[str, float] = {
        "mutants": len(mutants),
        "killed_fraction": whole.mean,
        "killed_low": whole.low,
        "killed_high": whole.high,
        "timeouts": sum(mutant.status == "timeout" for mutant in mutants),
        "equivalent": equivalent,
        "killed_of_different": killed.total() / (len(mutants) - equivalent),
    }
    for part in sorted(every):
        figures |= {
            f"mutants_{part}": every[part],
            f"killed_fraction_{part}": killed[part] / every[part],
        }
    report(figures, at_least={"mutants": 600, "killed_fraction": 0.9})


if __name__ == "__main__":
    main()
