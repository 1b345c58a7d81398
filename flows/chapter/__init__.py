"""Flows of the chapters of the thesis on learning dynamics: `dynolab chapter NAME`."""

from __future__ import annotations

from flows.chapter.digits import CLASSIFICATION, SIMPLICITY, SUPERVISION_FLOW, TRANSFER
from flows.chapter.language import COUPLING, SQUEEZING

FLOWS = {
    flow.name: flow
    for flow in (SQUEEZING, COUPLING, SIMPLICITY, CLASSIFICATION, SUPERVISION_FLOW, TRANSFER)
}
