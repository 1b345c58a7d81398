"""What the page of a force analysis is made of: what its stages wrote, checkpoint by checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dynolab.data.rows import read_value
from dynolab.report.inputs.files import PageInputs, rows
from dynolab.report.inputs.study import Kernel
from dynolab.results.forces import AnalysisFacts, PairForce, ResponseTermsRow
from dynolab.results.study import TokenMap


@dataclass(frozen=True)
class CheckpointForces:
    """The analysis of one checkpoint, under the label that people gave it."""

    label: str
    facts: AnalysisFacts
    totals: tuple[PairForce, ...]
    terms: tuple[ResponseTermsRow, ...]
    token_maps: tuple[TokenMap, ...] = ()


@dataclass(frozen=True)
class ForcePageInputs(PageInputs):
    """All that the page shows; `reference` is the checkpoint that the objective compares with."""

    checkpoints: tuple[CheckpointForces, ...]
    kernel: Kernel
    reference: str | None = None


def read_checkpoint(label: str, folder: Path) -> CheckpointForces:
    """Reads the result of an analysis; ConfigError for a file that holds something else."""
    return CheckpointForces(
        label,
        read_value(folder / "analysis.json", AnalysisFacts),
        rows(folder, "totals.jsonl", PairForce),
        rows(folder, "terms.jsonl", ResponseTermsRow),
        rows(folder, "token_maps.jsonl", TokenMap),
    )
