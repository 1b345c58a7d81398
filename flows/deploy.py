"""What Prefect imports to run a deployment: its entry, by the dotted name `flows.deploy.<name>`.

    python -m flows.deploy [alone]    # registers the deployments (`flows.deployment.register`)

alone: no worker runs yet; it then goes on and checks filled forms for the server.

An entry imports its flow when the run has begun, which its page then shows seconds earlier.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Any

import prefect
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.registry import DEPLOYED
from tasks.runtime.servers.run_names import PARAMETER, run_name


def __getattr__(name: str) -> prefect.Flow[..., Any]:
    if name not in DEPLOYED:
        raise AttributeError(name)

    def start(settings: Mapping[str, Any]) -> Any:
        from flows.deployment.deployments import deployment

        return deployment(name).run(settings)

    return prefect.flow(name=DEPLOYED[name], flow_run_name=_run_name)(start)


def _run_name() -> str:
    return run_name(str(flow_run.name), flow_run.parameters[PARAMETER], str(flow_run.flow_name))


@prefect.flow(name="reconcile")
def reconcile() -> dict[str, int]:
    """Send unsent runs to MLflow, kill orphaned processes, keep one waiting run a schedule."""
    from flows.deployment.upkeep import delete_completed_runs, keep_one_late_run
    from tasks.runtime.cleanup import clean_up
    from tasks.runtime.system.settings import Settings

    counts = clean_up(Settings.from_environment())
    with get_client(sync_client=True) as client:
        delete_completed_runs(client)
        keep_one_late_run(client)
    return counts


if __name__ == "__main__":
    gc.disable()  # as in tasks.runtime.flow_run_process
    from flows.deployment.register import main

    main(alone=sys.argv[1:] == ["alone"])
