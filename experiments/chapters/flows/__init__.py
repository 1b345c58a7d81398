"""Flows of the chapters of the thesis on learning dynamics: `dynolab chapter NAME`."""

from __future__ import annotations

from experiments.chapters.flows.digits import CLASSIFICATION, SIMPLICITY, SUPERVISION_FLOW, TRANSFER
from experiments.chapters.flows.language import COUPLING, SQUEEZING

FLOWS = {
    flow.name: flow
    for flow in (SQUEEZING, COUPLING, SIMPLICITY, CLASSIFICATION, SUPERVISION_FLOW, TRANSFER)
}
