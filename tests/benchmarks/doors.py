"""Tries every way into the servers and the explorer that are not the owner's.

    python -m tests.benchmarks.doors

It runs `tests/platform/test_doors.py`: requests without a login, and pages of other sites in a real
Chromium. Prints one JSON object on its last line:
`ways_tried`; `ways_open`: how many of them got in; `tests_failed`, `tests_skipped`.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.figures import main, run_tests


def doors(_: Path) -> dict[str, int]:
    tests = run_tests("tests/platform/test_doors.py")
    ends = [test["end"] for test in tests]
    return {
        "ways_tried": sum(int(test.get("ways_tried", 0)) for test in tests),
        "ways_open": sum(int(test.get("ways_open", 0)) for test in tests),
        "tests_failed": ends.count("failure") + ends.count("error"),
        "tests_skipped": ends.count("skipped"),
    }


if __name__ == "__main__":
    bounds = {"ways_open": 0, "tests_failed": 0, "tests_skipped": 0}
    main({"doors": doors}, at_least={"ways_tried": 125}, at_most=bounds)
