"""The audit: a model and preference pairs → what each pair would do → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.audit_parameters import AuditParameters, resolved_audit
from flows.audit_steps import audit_steps
from flows.running import run_steps
from tasks.runtime.opening import planning_platform


@flow(name="audit", flow_run_name="{parameters.name}")
def audit(parameters: AuditParameters, fresh: bool = False) -> dict[str, Any]:
    """Ranks preference pairs, before training, by what a step on each would do.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known, given = resolved_audit(parameters, planning_platform())
    return run_steps(
        audit_steps(known, given),
        study=known.name,
        project=known.project,
        given=given,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "audit"},
    )
