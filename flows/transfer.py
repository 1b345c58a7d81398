"""Transfer: images and topics → pretraining, probing, finetuning → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.running import run_steps
from flows.transfer_parameters import TransferParameters, resolved_transfer
from flows.transfer_steps import transfer_steps


@flow(name="transfer", flow_run_name="{parameters.name}")
def transfer(parameters: TransferParameters, fresh: bool = False) -> dict[str, Any]:
    """Compares how a task head can be prepared before everything is finetuned.

    `fresh` computes every stage again. Returns each stage's result as the study does.
    """
    known = resolved_transfer(parameters)
    return run_steps(
        transfer_steps(known),
        study=known.name,
        project=known.project,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "transfer"},
    )
