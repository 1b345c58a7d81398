"""What a report is made of: the rows that the stages wrote, training by training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dynolab.data.rows import ProbeRow, Row, read_rows, read_value
from dynolab.report.inputs.audit import Audit
from dynolab.report.inputs.compared import Compared
from dynolab.report.inputs.squeezing import Squeezing
from dynolab.results.forces import KernelFindings, KernelSizeRow
from dynolab.results.study import (
    AlarmRing,
    Answer,
    ForceRow,
    MetricsLine,
    ObjectiveName,
    ProbeScore,
    ReplayFacts,
    TokenMap,
    TrainingSummary,
)


class StageFacts(Row):
    """One line of the stage table."""

    stage: str
    key: str
    seconds: float | None = None
    mlflow_run_id: str | None = None


class StudyFacts(Row):
    """What the study was: its name, seed, settings and stages.

    `map_command` is the command line that maps the forces before and after preference training;
    it lacks the pair.
    """

    name: str
    seed: int | None = None
    config_text: str = ""
    map_command: str = ""
    stages: tuple[StageFacts, ...] = ()


@dataclass(frozen=True)
class Training:
    """One training and the analysis of its recorded steps. What was not measured is empty.

    `name` is the study's name for it, `stage` its objective's; `rows` counts the pairs that it
    kept, cut and left out; `alarm` is there where its alarm rang.
    """

    name: str
    stage: ObjectiveName
    rows: Mapping[str, int] = field(default_factory=dict)
    probes: tuple[ProbeScore, ...] = ()
    metrics: tuple[MetricsLine, ...] = ()
    forces: tuple[ForceRow, ...] = ()
    replay: tuple[ReplayFacts, ...] = ()
    token_map: TokenMap | None = None
    alarm: AlarmRing | None = None


@dataclass(frozen=True)
class Kernel:
    """Sizes of the kernel K at several checkpoints, and their rank correlations."""

    findings: KernelFindings
    sizes: tuple[KernelSizeRow, ...]


@dataclass(frozen=True)
class ReportInputs:
    """All that a report shows: the study's trainings in their order, one per objective.

    `contrasts` are trainings beside the study's own, under other conditions; `kernel` is measured
    at the study's models; `audit` is what was said of the pairs before preference training;
    `squeezing` is where the probability went that rose; `compared` what comparisons beside the
    study found; `answers` is what the models say, `watched`
    the answers whose likelihood was probed.
    """

    facts: StudyFacts
    trainings: tuple[Training, ...] = ()
    contrasts: tuple[Training, ...] = ()
    kernel: Kernel | None = None
    audit: Audit | None = None
    squeezing: Squeezing | None = None
    compared: Compared = field(default_factory=Compared)
    answers: tuple[Answer, ...] = ()
    watched: tuple[ProbeRow, ...] = ()


AnyRow = TypeVar("AnyRow", bound=Row)


def read_training(name: str, trained: Path, forces: Path | None = None) -> Training:
    """Reads the results of a training stage and of the force analysis of it.

    A file that is not there is a part that was not measured. Raises ConfigError for one that does
    not hold what it should.
    """
    summary = read_value(trained / "summary.json", TrainingSummary)

    def rows(folder: Path | None, file: str, kind: type[AnyRow]) -> tuple[AnyRow, ...]:
        path = folder / file if folder else None
        return tuple(read_rows(path, kind)) if path and path.exists() else ()

    replay, pushes = (forces / "replay.json", forces / "token_map.json") if forces else (None, None)
    return Training(
        name=name,
        stage=summary.objective,
        rows=summary.rows,
        alarm=summary.alarm,
        probes=rows(trained, "probes.jsonl", ProbeScore),
        metrics=rows(trained, "metrics.jsonl", MetricsLine),
        forces=rows(forces, "forces.jsonl", ForceRow),
        replay=read_value(replay, tuple[ReplayFacts, ...]) if replay and replay.exists() else (),
        token_map=read_value(pushes, TokenMap) if pushes and pushes.exists() else None,
    )


def read_kernel(folder: Path) -> Kernel:
    """Reads the result of a kernel stage."""
    return Kernel(
        read_value(folder / "kernel.json", KernelFindings),
        tuple(read_rows(folder / "sizes.jsonl", KernelSizeRow)),
    )
