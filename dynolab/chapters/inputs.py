"""Data of the chapters' pages: the rows that their stages wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dynolab.chapters.classification.force_study import ForceFindings
from dynolab.chapters.classification.path_study import PathFindings
from dynolab.chapters.classification.rows import (
    ClassifierState,
    ClassInfluence,
    Divergence,
    EpochInfluence,
    ExamplePath,
    KernelRanks,
    PathScores,
)
from dynolab.chapters.simplicity.rows import KindPath, LearnedMapping
from dynolab.chapters.supervision.rows import AdaptationRow, DetectionRow, SpeedRow, SupervisionRow
from dynolab.chapters.transfer.rows import TransferRow
from dynolab.report.inputs.files import rows
from dynolab.results.pushes import LeftOver, PairPush, RankChange
from dynolab.results.softmax import CaseCount, Panel, ShapePoint, StepPath


@dataclass(frozen=True)
class SqueezingRows:
    """The rows of one softmax, and those of a language model if one was studied."""

    counts: tuple[CaseCount, ...]
    panels: tuple[Panel, ...]
    shapes: tuple[ShapePoint, ...]
    paths: tuple[StepPath, ...]
    pushes: tuple[PairPush, ...] = ()
    left: tuple[LeftOver, ...] = ()
    ranks: tuple[RankChange, ...] = ()


@dataclass(frozen=True)
class SimplicityRows:
    """The rows of every space of mappings."""

    mappings: tuple[tuple[LearnedMapping, ...], ...]
    paths: tuple[tuple[KindPath, ...], ...]


@dataclass(frozen=True)
class SupervisionRows:
    """The rows of all noise levels, and those on learning speed."""

    arms: tuple[SupervisionRow, ...]
    detections: tuple[DetectionRow, ...]
    speeds: tuple[SpeedRow, ...]
    adaptations: tuple[AdaptationRow, ...]


def read_squeezing_rows(softmax: Path, push: Path | None) -> SqueezingRows:
    """Reads the results of stage `softmax`, and of `push` if it ran."""
    return SqueezingRows(
        counts=rows(softmax, "counts.jsonl", CaseCount),
        panels=rows(softmax, "panels.jsonl", Panel),
        shapes=rows(softmax, "shapes.jsonl", ShapePoint),
        paths=rows(softmax, "step_paths.jsonl", StepPath),
        pushes=rows(push, "pushes.jsonl", PairPush),
        left=rows(push, "explained.jsonl", LeftOver),
        ranks=rows(push, "ranks.jsonl", RankChange),
    )


def read_simplicity(spaces: Iterable[Path]) -> SimplicityRows:
    """Reads the results of stage `mappings`, one for each space."""
    folders = tuple(spaces)
    return SimplicityRows(
        mappings=tuple(rows(folder, "mappings.jsonl", LearnedMapping) for folder in folders),
        paths=tuple(rows(folder, "paths.jsonl", KindPath) for folder in folders),
    )


def read_class_forces(networks: Iterable[Path]) -> ForceFindings:
    """Reads the forces between classes of every network."""
    forces = ForceFindings()
    for folder in networks:
        forces.states += rows(folder, "states.jsonl", ClassifierState)
        forces.ranks += rows(folder, "ranks.jsonl", KernelRanks)
        forces.influences += rows(folder, "influence.jsonl", ClassInfluence)
        forces.diverged += rows(folder, "diverged.jsonl", Divergence)
    return forces


def read_class_paths(folder: Path) -> PathFindings:
    """Reads the learning paths of classifiers' examples."""
    return PathFindings(
        list(rows(folder, "scores.jsonl", PathScores)),
        list(rows(folder, "epochs.jsonl", EpochInfluence)),
        list(rows(folder, "paths.jsonl", ExamplePath)),
    )


def read_supervision(levels: Iterable[Path], speed: Path) -> SupervisionRows:
    """Reads the results of every noise level, and of stage `learning-speed`."""
    folders = tuple(levels)
    return SupervisionRows(
        tuple(
            row for folder in folders for row in rows(folder, "supervision.jsonl", SupervisionRow)
        ),
        tuple(row for folder in folders for row in rows(folder, "detections.jsonl", DetectionRow)),
        rows(speed, "speeds.jsonl", SpeedRow),
        rows(speed, "adaptations.jsonl", AdaptationRow),
    )


def read_transfer(tasks: Iterable[Path]) -> tuple[TransferRow, ...]:
    """Reads the result of every pair of tasks."""
    return tuple(row for folder in tasks for row in rows(folder, "transfer.jsonl", TransferRow))
