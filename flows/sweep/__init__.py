"""The flow `sweep`: trials with settings of another flow; their stages share results."""

from typing import Any

from flows.flow import Flow, Form
from flows.sweep.parameters import SweepParameters


def _run(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials; committed results of their stages are reused."""
    from flows.sweep.sweep import sweep

    return sweep(parameters)


FLOW = Flow(
    "sweep",
    SweepParameters,
    body=_run,
    pool="cpu",  # it only waits for its trials, which run in the other pool
    forms={
        "sweep": Form(
            "Many trials of another flow, with the settings listed under `space` in the file.",
            {
                "flow": "flow",
                "study": "study",
                "sampler": "sampler",
                "trials": "trials",
                "stage": "stage",
                "metric": "metric",
                "direction": "direction",
                "concurrency": "concurrency",
            },
            file="sweep_beta.yaml",
        )
    },
)
