"""The force analysis: checkpoints and data → force maps → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.forces_parameters import ForcesParameters, resolved_forces
from flows.forces_steps import forces_steps
from flows.running import run_steps
from tasks.runtime.opening import planning_platform


@flow(name="forces", flow_run_name="{parameters.name}")
def forces(parameters: ForcesParameters, fresh: bool = False) -> dict[str, Any]:
    """Measures which updating token pushes which observed token, at one or more checkpoints.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known, given = resolved_forces(parameters, planning_platform())
    return run_steps(
        forces_steps(known, given),
        study=known.name,
        project=known.project,
        given=given,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "forces"},
    )
