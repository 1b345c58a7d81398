"""What benchmarks share: timing, memory, real inputs, figures beside their bars."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import psutil

Result = TypeVar("Result")
Part = Callable[[Path], Mapping[str, Any]]
ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "deploy" / "studies"


def real_inputs(*paths: str) -> list[Path]:
    """Files and folders under DYNOLAB_TEST_DATA; the program ends with a message without them."""
    folder = os.environ.get("DYNOLAB_TEST_DATA")
    if folder is None:
        sys.exit(f"set DYNOLAB_TEST_DATA to a folder that holds {', '.join(paths)}")
    found = [Path(folder, path) for path in paths]
    if missing := [str(path) for path in found if not path.exists()]:
        sys.exit(f"DYNOLAB_TEST_DATA={folder} lacks {', '.join(missing)}")
    return found


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of one run, and what the work returns."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def seconds(work: Callable[[], object]) -> float:
    """Of one run."""
    return timed(work)[0]


def in_turns(*works: Callable[[], Result], repeats: int) -> list[list[Result]]:
    """The results of each work, round by round; another one begins each round.

    What the machine does meanwhile, and what one run leaves to the next in caches, falls on all
    alike.
    """
    results: list[list[Result]] = [[] for _ in works]
    for number in range(repeats):
        for place in range(len(works)):
            which = (number + place) % len(works)
            results[which].append(works[which]())
    return results


def interleaved(*works: Callable[[], object], repeats: int) -> list[list[float]]:
    """Seconds of each work `in_turns`, after one unmeasured round."""
    for work in works:
        work()
    return in_turns(*(partial(seconds, work) for work in works), repeats=repeats)


def ratio(name: str, upper: Sequence[float], lower: Sequence[float]) -> dict[str, float]:
    """Median over rounds of one figure over another, and how far the rounds differ."""
    ratios = [a / b for a, b in zip(upper, lower, strict=True)]
    return {name: statistics.median(ratios), f"{name}_spread": max(ratios) - min(ratios)}


def peak_above_start(work: Callable[[], object]) -> int:
    """Most resident bytes of this process while `work` ran, above those before it."""
    process, ended = psutil.Process(), threading.Event()
    start = most = process.memory_info().rss

    def observe() -> None:
        nonlocal most
        while not ended.wait(0.005):
            most = max(most, process.memory_info().rss)

    thread = threading.Thread(target=observe)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    return int(most - start)


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median of a figure, the smallest and the largest."""
    return {
        name: statistics.median(values),
        f"{name}_low": min(values),
        f"{name}_high": max(values),
    }


def with_data(**parts: Part) -> dict[str, Part]:
    """Parts that read DYNOLAB_TEST_DATA; without it none, which is said."""
    if "DYNOLAB_TEST_DATA" in os.environ:
        return parts
    print(f"DYNOLAB_TEST_DATA names no folder: no {', '.join(parts)}", file=sys.stderr)
    return {}


def main(
    parts: Mapping[str, Part],
    *,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
) -> None:
    """A benchmark's program: the figures of its parts, or of those that `--only` names, are printed
    as they come, and reported beside their bars.

    A part is given a folder, which is one for all, and is removed in the end.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    wanted = parser.parse_args().only
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            measured = parts[name](Path(folder).resolve())
            print(json.dumps(measured), flush=True)
            figures |= measured
    report(figures, at_least=at_least, at_most=at_most)


def last_line(module: str, *arguments: str, threads: int | None = None) -> str:
    """What a benchmark prints last in a process of its own."""
    limit = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    environment = os.environ | limit
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout.splitlines()[-1]


def run_tests(*arguments: str) -> list[dict[str, str]]:
    """Runs pytest; the properties that each test recorded, its `name` and its `end`: passed,
    failure, error or skipped."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/report.xml"
        options = ["-v", "--junitxml", file, "-o", "junit_family=xunit1", *arguments]
        command = [sys.executable, "-m", "pytest", *options]
        subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr)
        return read_tests(Path(file).read_text())


def read_tests(report: str) -> list[dict[str, str]]:
    """The tests of a JUnit report, as `run_tests` returns them."""
    tests = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        ends = [end for end in ("failure", "error", "skipped") if case.find(end) is not None]
        test = {"name": case.attrib["name"], "end": ends[0] if ends else "passed"}
        test |= {known.attrib["name"]: known.attrib["value"] for known in case.iter("property")}
        tests.append(test)
    return tests


def report(
    figures: Mapping[str, Any],
    *,
    at_least: Mapping[str, float] | None = None,
    at_most: Mapping[str, float] | None = None,
) -> None:
    """Prints figures, and `bars`: {key: [bound, met]}, as one JSON object; ends the program.

    Its exit code is 1 where a bar is missed. A figure that is None misses its bar; one that was
    not measured has none.
    """
    bars = {}
    for bounds, sign in ((at_least or {}, 1), (at_most or {}, -1)):
        for key in bounds.keys() & figures.keys():
            value, bound = figures[key], bounds[key]
            bars[key] = [bound, value is not None and sign * value >= sign * bound]
    shown = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(json.dumps(shown | {"bars": bars}))
    sys.exit(not all(met for _, met in bars.values()))
