"""The flow `sweep`: settings of another flow are tried by trials that share their stages."""

from typing import Any

from flows.flow import Flow, Form
from flows.sweep.parameters import SweepParameters


def _run(parameters: SweepParameters) -> dict[str, Any]:
    """Runs the trials; what their stages have committed is not computed again."""
    from flows.sweep.sweep import sweep

    return sweep(parameters)


FLOW = Flow(
    "sweep",
    SweepParameters,
    body=_run,
    pool="cpu",  # it waits for its trials, which the other pool runs
    forms={
        "sweep": Form(
            "Many trials of another flow; what is tried stands in the file, under `space`.",
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
