"""Data of the page of a force analysis: what its stages wrote, checkpoint by checkpoint."""

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


def read_checkpoint(label: str, folder: Path) -> CheckpointForces:
    """Reads the result of an analysis. Raises ConfigError for a file with other rows."""
    return CheckpointForces(
        label,
        read_value(folder / "analysis.json", AnalysisFacts),
        rows(folder, "totals.jsonl", PairForce),
        rows(folder, "terms.jsonl", ResponseTermsRow),
        rows(folder, "token_maps.jsonl", TokenMap),
    )
