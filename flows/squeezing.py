"""The chapter on squeezing: random cases, a language model's answers pushed down → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.running import run_steps
from flows.squeezing_parameters import SqueezingParameters, resolved_squeezing
from flows.squeezing_steps import squeezing_steps
from tasks.runtime.opening import planning_platform


@flow(name="squeezing", flow_run_name="{parameters.name}")
def squeezing(parameters: SqueezingParameters, fresh: bool = False) -> dict[str, Any]:
    """Tries what is provable of squeezing, and measures how much of a model's it explains.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known, given = resolved_squeezing(parameters, planning_platform())
    return run_steps(
        squeezing_steps(known, given),
        study=known.name,
        project=known.project,
        given=given,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "squeezing"},
    )
