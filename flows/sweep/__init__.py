"""The flow `sweep`: settings of another flow are tried by trials that share their stages."""

from typing import Any

from flows.flow import Flow, Form
from flows.sweep.parameters import SweepParameters


class SweepFlow(Flow[SweepParameters]):
    """Many trials of another flow; it waits for them, so that workers of the pool `cpu` run it."""

    def run(self, parameters: SweepParameters) -> dict[str, Any]:
        """Runs the trials; what their stages have committed is not computed again."""
        from flows.sweep.sweep import sweep

        return sweep(parameters)


FLOW = SweepFlow(
    "sweep",
    SweepParameters,
    pool="cpu",
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
