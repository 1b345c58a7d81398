"""The flow of a sweep, and its form."""

from __future__ import annotations

from flows.flow import Flow, Form
from flows.sweep.parameters import SweepParameters
from flows.sweep.run import sweep

FLOW = Flow(
    "sweep",
    SweepParameters,
    body=sweep,
    forms={
        "sweep": Form(
            "Many trainings that differ in a few settings, and which of them is best.",
            {
                "sampler": "sampler",
                "trials": "trials",
                "metric": "metric",
                "direction": "direction",
                "prune": "prune.rule",
                "stage": "stage",
                "flow": "flow",
                "study": "study",
            },
            tried={
                "beta": "preference.objective.beta",
                "learning_rate": "preference.optimizer.learning_rate",
                "steps": "preference.steps",
            },
            file="sweep_beta.yaml",
        )
    },
)
