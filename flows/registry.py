"""The flows and their descriptions, those of wings among them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from flows.entry import COMPARE, FORCES, START, Entry

if TYPE_CHECKING:
    from typer import Typer

    from flows.flow import Flow

CORE = {
    "study": Entry(
        "Run the study: data, base, SFT, preference training, probe, forces, report.",
        "flows.study.flow",
        START,
        listed="a-study",
    ),
    "audit": Entry(
        "Rank preference pairs, before training, by the effect of one step on each.", "flows.audit"
    ),
    "forces": Entry(
        "Measure which token pushes which, at checkpoints of the store, a folder or the Hub.",
        "flows.forces",
        FORCES,
    ),
    "ledger": Entry(
        "Measure over a whole training which example moved which answer at which step.",
        "flows.ledger",
        FORCES,
    ),
    "trace": Entry(
        "Find the training rows behind a behaviour: pairs of unwanted and wanted answers.",
        "flows.trace",
        FORCES,
    ),
    "judge": Entry(
        "Compare models' answers by judges: exact rewards, a model's likelihood or an LLM.",
        "flows.judge",
        FORCES,
    ),
    "probes": Entry("Build probe answers of any kind from any pairs.", "flows.probes", FORCES),
    "mitigation": Entry(
        "Compare remedies against squeezing: changes to DPO, its pairs, its start.",
        "flows.mitigation",
        COMPARE,
        tag="compare",
        listed="all-remedies",
    ),
    "grpo": Entry(
        "Compare trainings on groups of the model's own answers: GRPO and its relatives.",
        "flows.grpo",
        COMPARE,
        tag="compare",
    ),
    "train": Entry(
        "Train as a study does, without its analyses.",
        "flows.study.flow",
        forms=("sft", "preference"),
    ),
    "sweep": Entry(
        "Try settings of another flow: a grid, draws or Optuna's TPE.",
        "flows.sweep.flow",
        tag="compare",
        listed="a-sweep",
    ),
}


class Wing(Protocol):
    """The module `wing` of a package beside `flows`, with flows and commands that it brings.

    Importing it must be quick: every command does. A wing imports what is here, and nothing here
    names it: without its folder, there is the rest.
    """

    __package__: str
    FLOWS: Mapping[str, Entry]

    def add_commands(self, app: Typer) -> None:
        """Adds the commands of flows without a group to the command line."""


def _wings() -> tuple[Wing, ...]:
    files = sorted(Path(__file__).parents[1].glob("*/wing.py"))
    return tuple(cast(Wing, import_module(f"{file.parent.name}.wing")) for file in files)


WINGS = _wings()
REGISTRY = CORE | {name: entry for wing in WINGS for name, entry in wing.FLOWS.items()}
"""By name. Listing them imports no flow."""

FLOWS = {name: entry.about for name, entry in REGISTRY.items()}
"""Name → what it does."""

DEPLOYED = {form: name for name, entry in REGISTRY.items() for form in entry.forms or (name,)}
"""Deployment, which is called like its form → its flow."""

LISTED = {name: entry.listed for name, entry in REGISTRY.items() if entry.listed} | {
    "reconcile": "~internal-reconcile"
}
"""Deployment → its name in Prefect, if another."""


def load_flow(name: str) -> Flow[Any]:
    """Imports the flow with this name."""
    module = import_module(REGISTRY[name].module)
    flow: Flow[Any] = module.FLOW if hasattr(module, "FLOW") else module.FLOWS[name]
    return flow
