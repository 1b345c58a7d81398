"""Data of the pages of a study, an audit and a force analysis: the rows that the stages wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import Example, ProbeRow, Row, read_value
from dynolab.results.arms import ComparedArms
from dynolab.results.audit import Band, ChosenChange, Foresight, PairAudit
from dynolab.results.forces import (
    AnalysisFacts,
    KernelFindings,
    KernelSizeRow,
    PairForce,
    ResponseTermsRow,
)
from dynolab.results.ledger_reader import LedgerReader
from dynolab.results.study import (
    Answer,
    Generation,
    RisenMass,
    TokenMap,
    TokenProbability,
    Training,
    records,
    rows,
)


class StageFacts(Row):
    """One line of the stage table."""

    stage: str
    key: str
    seconds: float | None = None
    mlflow_run_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class PageInputs:
    """What every page shows about its run: the name, the settings as text, and the stages."""

    name: str
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()


class StudyFacts(Row):
    """A study's name, seed, settings and stages.

    `map_command` maps the forces before and after preference training; the pair's id is to be added
    to it; `explore_command` opens the study in the browser, `remedies_command` compares remedies.
    `designed_dose`: whether forces chose the push on rejected answers. `reports`: the folder with
    copies of the page and of its files; `path_command` prints the folder of the result itself.
    `rows`: what became of the data's rows. `read_otherwise`: how many of the sample texts
    AutoTokenizer splits otherwise than the tokenizer that the study uses.
    """

    name: str
    seed: int | None = None
    config_text: str = ""
    map_command: str = ""
    explore_command: str = ""
    remedies_command: str = ""
    designed_dose: bool = False
    reports: str = ""
    path_command: str = ""
    rows: str = ""
    read_otherwise: int = 0
    stages: tuple[StageFacts, ...] = ()


@dataclass(frozen=True)
class Audit:
    """The audited pairs with their texts, and what training then did, if known."""

    rows: tuple[PairAudit, ...]
    texts: Mapping[tuple[str, str], Example]
    changes: tuple[ChosenChange, ...] = ()
    foresight: tuple[Foresight, ...] = ()

    @property
    def trained(self) -> list[PairAudit]:
        """The pairs of the training."""
        return [row for row in self.rows if row.split == "train"]

    @property
    def bands(self) -> dict[str, Band]:
        """The bands of the training's pairs, where they are known."""
        return {row.pair_id: row.band for row in self.trained if row.band}

    @property
    def moved(self) -> dict[tuple[str, str], float]:
        """What training did to chosen answers in nats, by split and pair."""
        return {(row.split, row.pair_id): row.change for row in self.changes}


@dataclass(frozen=True)
class AuditPageInputs(PageInputs):
    """Everything the page shows."""

    objective: str
    audit: Audit


@dataclass(frozen=True)
class Kernel:
    """Sizes of the kernel K at several checkpoints, and their rank correlations."""

    findings: KernelFindings
    sizes: tuple[KernelSizeRow, ...]


@dataclass(frozen=True)
class CheckpointForces:
    """The analysis of one checkpoint, under the user's label for it."""

    label: str
    facts: AnalysisFacts
    totals: tuple[PairForce, ...]
    terms: tuple[ResponseTermsRow, ...]
    token_maps: tuple[TokenMap, ...] = ()


@dataclass(frozen=True)
class ForcePageInputs(PageInputs):
    """Everything the page shows; `reference`: the checkpoint of the reference policy."""

    checkpoints: tuple[CheckpointForces, ...]
    kernel: Kernel
    reference: str | None = None


@dataclass(frozen=True)
class Squeezing:
    """Where the probability that rose went, its forecasts, and repeated answers.

    `forecasts`, `ladder`: tables of `dynolab.squeezing.forecast` and `dynolab.squeezing.ladder`.
    `position`: the tokens at the most squeezed position; empty in older results.
    """

    risen: tuple[RisenMass, ...] = ()
    forecasts: Sequence[Mapping[str, Any]] = ()
    generations: tuple[Generation, ...] = ()
    ladder: Sequence[Mapping[str, Any]] = ()
    position: tuple[TokenProbability, ...] = ()


@dataclass(frozen=True)
class Compared:
    """Comparisons over several seeds, in runs of their own.

    `remedies`: those against squeezing; `findings`: verdicts on the papers' claims; `missing`: the
    commands of comparisons that have not run yet, by the comparison's name.
    """

    remedies: ComparedArms | None = None
    findings: tuple[Verdict, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportInputs:
    """Everything a report shows: the study's trainings in order, one per objective.

    `contrasts`: trainings under other conditions, beside the study's own; `kernel`: measured at the
    study's models; `audit`: of the pairs, before preference training; `squeezing`: where the
    probability that rose went; `ledger`: the account of preference training; `compared`: results of
    comparisons beside the study; `answers`: the models' answers; `watched`: the answers whose
    likelihood was probed.
    """

    facts: StudyFacts
    trainings: tuple[Training, ...] = ()
    contrasts: tuple[Training, ...] = ()
    kernel: Kernel | None = None
    audit: Audit | None = None
    squeezing: Squeezing | None = None
    ledger: LedgerReader | None = None
    compared: Compared = field(default_factory=Compared)
    answers: tuple[Answer, ...] = ()
    watched: tuple[ProbeRow, ...] = ()


def read_kernel(folder: Path) -> Kernel:
    """Reads the result of a kernel stage."""
    findings = read_value(folder / "kernel.json", KernelFindings)
    return Kernel(findings, rows(folder, "sizes.jsonl", KernelSizeRow))


def read_squeezing(folder: Path) -> Squeezing:
    """Reads the result of a squeezing stage."""
    return Squeezing(
        rows(folder, "risen.jsonl", RisenMass),
        records(folder, "forecasts.jsonl"),
        rows(folder, "generations.jsonl", Generation),
        records(folder, "ladder.jsonl"),
        rows(folder, "position.jsonl", TokenProbability, optional=True),
    )


def read_compared(
    mitigation: Path | None, reproduction: Path | None, *, missing: Mapping[str, str]
) -> Compared:
    """Reads the results of the comparisons' pages, if there are any."""
    return Compared(
        remedies=read_value(mitigation / "comparison.json", ComparedArms) if mitigation else None,
        findings=rows(reproduction, "verdicts.jsonl", Verdict),
        missing=missing,
    )


def read_audit(data: Path, audit: Path, foresight: Path | None = None) -> Audit:
    """Reads the results of an audit, of its data, and of a foresight stage."""
    return Audit(
        rows(audit, "audit.jsonl", PairAudit),
        {
            (split, row.id): row
            for split in ("train", "heldout")
            for row in rows(data, f"{split}.jsonl", Example)
        },
        rows(foresight, "changes.jsonl", ChosenChange),
        rows(foresight, "foresight.jsonl", Foresight),
    )


def read_checkpoint(label: str, folder: Path) -> CheckpointForces:
    """Reads the result of an analysis. Raises ConfigError for a file with other rows."""
    return CheckpointForces(
        label,
        read_value(folder / "analysis.json", AnalysisFacts),
        rows(folder, "totals.jsonl", PairForce),
        rows(folder, "terms.jsonl", ResponseTermsRow),
        rows(folder, "token_maps.jsonl", TokenMap),
    )
