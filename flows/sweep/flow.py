"""The flow of a sweep, and its form."""

from __future__ import annotations

from typing import Any

from flows.flow import Flow, Form
from flows.sweep.page import report
from flows.sweep.parameters import SweepParameters
from flows.sweep.run import check_sweep, run_trials
from flows.sweep.trials import SweepStudy
from tasks.runtime.open_platform import open_platform
from tasks.runtime.track.runs import shown_params


def sweep(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials of a sweep that no process has begun, or whose process died.

    Returns the trials as rows.
    """
    check_sweep(parameters)
    study = SweepStudy(parameters)
    with open_platform(
        study=parameters.name,
        project=parameters.project,
        tags={"kind": "sweep", "flow": "sweep", "sweep": parameters.name},
        params=shown_params(parameters),
        settings_yaml=parameters.as_yaml,
        charts=True,
    ) as platform:
        run_trials(study, platform)
        return report(study, platform)


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
