"""What a study's report is made of: the rows that the stages wrote, training by training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import ProbeRow, Row, read_value
from dynolab.report.inputs.audit import Audit
from dynolab.report.inputs.files import StageFacts, rows
from dynolab.results.arms import ComparedArms
from dynolab.results.forces import KernelFindings, KernelSizeRow
from dynolab.results.squeezing import Forecast, Generation, RisenMass
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
class Squeezing:
    """Where risen probability went, what foretold it, and how much answers repeat themselves."""

    risen: tuple[RisenMass, ...] = ()
    forecasts: tuple[Forecast, ...] = ()
    generations: tuple[Generation, ...] = ()


@dataclass(frozen=True)
class Compared:
    """Comparisons over several seeds, in runs of their own.

    `remedies` against squeezing; `findings`, the papers' claims; `missing` are commands that run
    what has not been run, by what they compare.
    """

    remedies: ComparedArms | None = None
    findings: tuple[Verdict, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


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


def read_training(name: str, trained: Path, forces: Path | None = None) -> Training:
    """Reads the results of a training stage and of the force analysis of it.

    A file that is not there is a part that was not measured. Raises ConfigError for one that does
    not hold what it should.
    """
    summary = read_value(trained / "summary.json", TrainingSummary)
    replay, pushes = (forces / "replay.json", forces / "token_map.json") if forces else (None, None)
    return Training(
        name=name,
        stage=summary.objective,
        rows=summary.rows,
        alarm=summary.alarm,
        probes=rows(trained, "probes.jsonl", ProbeScore, optional=True),
        metrics=rows(trained, "metrics.jsonl", MetricsLine, optional=True),
        forces=rows(forces, "forces.jsonl", ForceRow, optional=True),
        replay=read_value(replay, tuple[ReplayFacts, ...]) if replay and replay.exists() else (),
        token_map=read_value(pushes, TokenMap) if pushes and pushes.exists() else None,
    )


def read_kernel(folder: Path) -> Kernel:
    """Reads the result of a kernel stage."""
    findings = read_value(folder / "kernel.json", KernelFindings)
    return Kernel(findings, rows(folder, "sizes.jsonl", KernelSizeRow))


def read_squeezing(folder: Path) -> Squeezing:
    """Reads the result of a squeezing stage."""
    return Squeezing(
        rows(folder, "risen.jsonl", RisenMass),
        rows(folder, "forecasts.jsonl", Forecast),
        rows(folder, "generations.jsonl", Generation),
    )


def read_compared(
    mitigation: Path | None, reproduction: Path | None, *, missing: Mapping[str, str]
) -> Compared:
    """Reads the results of the comparisons' pages, where there are any."""
    return Compared(
        remedies=read_value(mitigation / "comparison.json", ComparedArms) if mitigation else None,
        findings=rows(reproduction, "verdicts.jsonl", Verdict),
        missing=missing,
    )


def read_answers(probe: Path) -> tuple[Answer, ...]:
    """Reads what the models say, of a probe stage."""
    return rows(probe, "answers.jsonl", Answer)


def read_watched(data: Path) -> tuple[ProbeRow, ...]:
    """Reads the answers whose likelihood is probed, of a data stage."""
    return rows(data, "probes.jsonl", ProbeRow)
