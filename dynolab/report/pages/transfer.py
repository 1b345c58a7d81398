"""The page of task heads."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.claims.transfer import IN, assess_transfer, sweeps
from dynolab.report.page import Html, Tile
from dynolab.report.pages.chapter import Chapter
from dynolab.report.panels.transfer import (
    accuracy_plate,
    energy_plate,
    feature_plate,
    strategy_section,
)
from dynolab.report.style import Plate, join
from dynolab.results.transfer import TransferRow

_SOURCE = (
    "Claims follow Ren et al., How to Prepare Your Task Head for Finetuning (arXiv 2302.05779), of "
    "the linear head. Intervals are 95% t-intervals over seeds, paired by seed; the inner τ is "
    "picked for every seed on the other seeds."
)


def transfer_chapter(rows: Sequence[TransferRow]) -> Chapter:
    """The chapter; its name, settings and stages are for the stage to fill in."""
    content: list[Plate | Html] = []
    for task in _tasks(rows):
        found = sorted(
            (one for one in sweeps(rows) if one.task == task),
            key=lambda one: one.strategy != "linear",
        )
        content += [
            accuracy_plate(task, found),
            energy_plate(task, found),
            feature_plate(task, found),
            strategy_section(task, found),
        ]
    return Chapter(
        name="",
        title="How to prepare a task head",
        lead=_lead(rows),
        verdicts=assess_transfer(rows),
        content=content,
        tiles=_tiles(rows),
        source=_SOURCE,
    )


def _tasks(rows: Sequence[TransferRow]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _lead(rows: Sequence[TransferRow]) -> str:
    taus, seeds = sorted({row.tau for row in rows}), {row.seed for row in rows}
    return (
        f"A network learns some {join(_tasks(rows))}; then its head alone is trained on others for "
        f"τ epochs (τ = {join([str(tau) for tau in taus])}), and then everything. τ = 0 is plain "
        f"finetuning, a large τ is probing to the end before it. {len(seeds)} seeds."
    )


def _tiles(rows: Sequence[TransferRow]) -> list[Tile]:
    found = []
    for one in sweeps(rows):
        if one.strategy == "linear":
            for test, said in ((IN, "in distribution"), ("elsewhere", "elsewhere")):
                means = one.accuracy(test).mean(1)
                at = int(means.argmax())
                found.append(
                    Tile(
                        f"{one.task}: best τ {said}",
                        str(one.taus[at]),
                        f"{means[at]:.1%}; {means[0]:.1%} at τ = {one.taus[0]}, {means[-1]:.1%} at "
                        f"τ = {one.taus[-1]}",
                    )
                )
    return found
