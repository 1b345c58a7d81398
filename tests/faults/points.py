"""When a fault strikes a training, and how the training goes on."""

from __future__ import annotations

from typing import Literal

from tests.faults.standing import Standing
from tests.flows.lab import Lab, until

Point = Literal["before the first resume state", "between two resume states"]
POINTS: tuple[Point, ...] = ("before the first resume state", "between two resume states")


def paused(platform: Standing, point: Point) -> int:
    """Rank 1, stopped at that point of preference training."""
    lab = platform.lab
    return lab.pause_start() if point == POINTS[0] else lab.pause_preference()


def dead(platform: Standing) -> None:
    """No process of a run lives longer than the moment that it takes to end."""
    until(lambda: not set(platform.lab.processes()) - platform.lab.kept, 30)


def goes_on(platform: Standing, undisturbed: Lab, project: str, point: Point) -> bool:
    """Started again the training ends; whether with the weights of the undisturbed one."""
    assert platform.end(platform.train(project)) == "Completed"
    resumed = platform.lab.manifest("preference")["metrics"]["resumed_from"]
    assert resumed == 0 if point == POINTS[0] else resumed >= 3
    return platform.lab.hashes("preference") == undisturbed.hashes("preference")
