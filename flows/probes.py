"""The building of a probe set: data → untrained policy → rows of every kind wanted."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.probes_parameters import ProbesParameters, resolved_probes
from flows.probes_steps import probes_steps
from flows.running import run_steps


@flow(name="probes", flow_run_name="{parameters.name}")
def probes(parameters: ProbesParameters, fresh: bool = False) -> dict[str, Any]:
    """Builds the answers whose likelihood a study watches.

    `fresh` computes every stage again; the writer's answers that are kept are not asked again.
    Returns each stage's result as the study does.
    """
    known = resolved_probes(parameters)
    return run_steps(
        probes_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "probes"},
    )
