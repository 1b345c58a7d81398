"""The flows and their descriptions; most are `FLOW` in `flows/<name>.py`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.flow import Flow

CHAPTERS = {
    "squeezing": "Show where pushed-down probability goes, in one softmax and in a model.",
    "coupling": "Check whether the same answers stay coupled, over learning rates and under DPO.",
    "simplicity": "Compare which mappings from objects to messages are learned fast, and why.",
    "classification": "Measure which image pushes which, and how every example is learned.",
    "supervision": "Compare what to teach when labels are wrong, and what is learned faster.",
    "transfer": "Compare ways to prepare a task head before full finetuning.",
}
"""The chapters: what `dynolab chapter NAME` runs."""

FLOWS = {
    "study": "Run the study: data, base, SFT, preference training, probe, forces, report.",
    "audit": "Rank preference pairs, before training, by the effect of one step on each.",
    "forces": "Measure which token pushes which, at checkpoints of the store, a folder or the Hub.",
    "ledger": "Measure over a whole training which example moved which answer at which step.",
    "counterfactual": "Train without some pairs, and compare with the ledger's forecast.",
    "judge": "Compare models' answers by judges: exact rewards, a model's likelihood or an LLM.",
    "probes": "Build probe answers of any kind from any pairs.",
    "mitigation": "Compare remedies against squeezing: changes to DPO, its pairs, its start.",
    "reproduce": "Check which of the papers' findings on finetuning a model and data show.",
    "grpo": "Compare trainings on groups of the model's own answers: GRPO and its relatives.",
    "train": "Train as a study does, without its analyses.",
    "sweep": "Try settings of another flow: a grid, draws or Optuna's TPE.",
    **CHAPTERS,
}
"""Name → description on the command line and in Prefect. Listing them imports no flow."""


MODULES = {
    "study": "study",
    "train": "study",
    "reproduce": "comparison",
    "ledger": "ledger",
    "counterfactual": "ledger",
    **dict.fromkeys(CHAPTERS, "chapter"),
}
"""Flow → its module in this package, where that holds several: `FLOWS` by name."""


def load_flow(name: str) -> Flow[Any]:
    """Imports the flow with this name."""
    module = import_module(f"flows.{MODULES.get(name, name)}")
    flow: Flow[Any] = module.FLOWS[name] if name in MODULES else module.FLOW
    return flow
