"""What benchmarks share: timing, runs in processes of their own, figures beside their bars."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of one run, and what the work returns."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def seconds(work: Callable[[], object]) -> float:
    """Of one run."""
    return timed(work)[0]


def interleaved(*works: Callable[[], object], repeats: int) -> list[list[float]]:
    """Seconds of each work, round by round, after one unmeasured round.

    Another one begins each round: what the machine does meanwhile, and what one run leaves to the
    next in caches, falls on all alike.
    """
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for number in range(repeats):
        for place in range(len(works)):
            which = (number + place) % len(works)
            times[which].append(seconds(works[which]))
    return times


def ratio(name: str, upper: Sequence[float], lower: Sequence[float]) -> dict[str, float]:
    """Median over rounds of one figure over another, and how far the rounds differ."""
    ratios = [a / b for a, b in zip(upper, lower, strict=True)]
    return {name: statistics.median(ratios), f"{name}_spread": max(ratios) - min(ratios)}


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """The median of a figure, the smallest and the largest."""
    return {
        name: statistics.median(values),
        f"{name}_low": min(values),
        f"{name}_high": max(values),
    }


def gather(
    parts: Iterable[Callable[[], Mapping[str, float]]], **figures: float
) -> dict[str, float]:
    """The given figures and those of every part, which are printed as they come."""
    for part in parts:
        measured = part()
        print(json.dumps(measured), flush=True)
        figures |= measured
    return figures


def last_line(module: str, *arguments: str, threads: int | None = None) -> str:
    """What a benchmark prints last in a process of its own."""
    limit = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    environment = os.environ | limit
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return done.stdout.splitlines()[-1]


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
    bars = {
        key: [bound, figures[key] is not None and figures[key] >= bound]
        for key, bound in (at_least or {}).items()
        if key in figures
    }
    bars |= {
        key: [bound, figures[key] is not None and figures[key] <= bound]
        for key, bound in (at_most or {}).items()
        if key in figures
    }
    print(json.dumps({name: _short(value) for name, value in figures.items()} | {"bars": bars}))
    sys.exit(not all(met for _, met in bars.values()))


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
