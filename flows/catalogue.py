"""The flows that a person starts by command: what each is given, does, and leaves to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from flows.audit_parameters import AuditParameters, resolved_audit
from flows.audit_steps import audit_steps
from flows.classification_parameters import (
    ClassificationParameters,
    resolved_classification,
)
from flows.classification_steps import classification_steps
from flows.comparison import resolved_comparison
from flows.forces_parameters import ForcesParameters, resolved_forces
from flows.forces_steps import forces_steps
from flows.grpo_parameters import GrpoParameters
from flows.grpo_steps import grpo_steps
from flows.judge_parameters import JudgeParameters, resolved_judge
from flows.judge_steps import judge_steps
from flows.mitigation_parameters import MitigationParameters
from flows.mitigation_steps import mitigation_steps
from flows.parameters import StudyParameters, resolved
from flows.probes_parameters import ProbesParameters, resolved_probes
from flows.probes_steps import probes_steps
from flows.reproduce_parameters import ReproduceParameters
from flows.reproduce_steps import reproduce_steps
from flows.simplicity_parameters import SimplicityParameters
from flows.simplicity_steps import simplicity_steps
from flows.squeezing_parameters import SqueezingParameters, resolved_squeezing
from flows.squeezing_steps import squeezing_steps
from flows.study_comparisons import planned_study
from flows.supervision_parameters import SupervisionParameters, resolved_supervision
from flows.supervision_steps import supervision_steps
from flows.transfer_parameters import TransferParameters, resolved_transfer
from flows.transfer_steps import transfer_steps
from tasks.runtime.chain import Step
from tasks.runtime.opening import planning_platform
from tasks.runtime.work import StageResult

Parameters = TypeVar(
    "Parameters",
    bound=StudyParameters
    | ForcesParameters
    | AuditParameters
    | ClassificationParameters
    | GrpoParameters
    | JudgeParameters
    | MitigationParameters
    | ProbesParameters
    | ReproduceParameters
    | SimplicityParameters
    | SqueezingParameters
    | SupervisionParameters
    | TransferParameters,
)
Planned = tuple[list[Step], Mapping[str, StageResult]]
"""Steps, and the results that they read without a step."""


@dataclass(frozen=True)
class Command(Generic[Parameters]):
    """One flow; `name` is its module in `flows` and its function there."""

    name: str
    parameters: type[Parameters]
    planned: Callable[[Parameters], Planned]
    """Raises ConfigError for what cannot work."""

    page: str
    """Step whose `file` is copied to where a person finds it."""

    file: str

    def run(self, parameters: Parameters, *, fresh: bool) -> dict[str, dict[str, Any]]:
        """Runs the flow; Prefect reads its settings when it is imported here."""
        flow = getattr(import_module(f"flows.{self.name}"), self.name)
        results: dict[str, dict[str, Any]] = flow(parameters, fresh=fresh)
        return results


def _forces(parameters: ForcesParameters) -> Planned:
    known, given = resolved_forces(parameters, planning_platform())
    return forces_steps(known, given), given


def _audit(parameters: AuditParameters) -> Planned:
    known, given = resolved_audit(parameters, planning_platform())
    return audit_steps(known, given), given


def _judge(parameters: JudgeParameters) -> Planned:
    known, given = resolved_judge(parameters, planning_platform())
    return judge_steps(known, given), given


def _squeezing(parameters: SqueezingParameters) -> Planned:
    known, given = resolved_squeezing(parameters, planning_platform())
    return squeezing_steps(known, given), given


STUDY = Command(
    "study",
    StudyParameters,
    lambda given: planned_study(resolved(given), planning_platform()),
    page="report",
    file="report.html",
)
FORCES = Command("forces", ForcesParameters, _forces, page="force-page", file="forces.html")
AUDIT = Command("audit", AuditParameters, _audit, page="audit-page", file="audit.html")
CLASSIFICATION = Command(
    "classification",
    ClassificationParameters,
    lambda given: (classification_steps(resolved_classification(given)), {}),
    page="classification-page",
    file="classification.html",
)
GRPO = Command(
    "grpo",
    GrpoParameters,
    lambda given: (grpo_steps(resolved_comparison(given)), {}),
    page="grpo-page",
    file="grpo.html",
)
MITIGATION = Command(
    "mitigation",
    MitigationParameters,
    lambda given: (mitigation_steps(resolved_comparison(given)), {}),
    page="mitigation-page",
    file="mitigation.html",
)
JUDGE = Command("judge", JudgeParameters, _judge, page="judge-page", file="judge.html")
PROBES = Command(
    "probes",
    ProbesParameters,
    lambda given: (probes_steps(resolved_probes(given)), {}),
    page="probe-set",
    file="probes.jsonl",
)
REPRODUCE = Command(
    "reproduce",
    ReproduceParameters,
    lambda given: (reproduce_steps(resolved_comparison(given)), {}),
    page="reproduction-page",
    file="reproduction.html",
)
SIMPLICITY = Command(
    "simplicity",
    SimplicityParameters,
    lambda given: (simplicity_steps(given), {}),
    page="simplicity-page",
    file="simplicity.html",
)
SQUEEZING = Command(
    "squeezing", SqueezingParameters, _squeezing, page="squeezing-page", file="squeezing.html"
)
SUPERVISION = Command(
    "supervision",
    SupervisionParameters,
    lambda given: (supervision_steps(resolved_supervision(given)), {}),
    page="supervision-page",
    file="supervision.html",
)
TRANSFER = Command(
    "transfer",
    TransferParameters,
    lambda given: (transfer_steps(resolved_transfer(given)), {}),
    page="transfer-page",
    file="transfer.html",
)
