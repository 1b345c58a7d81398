"""A work pool's GPUs as Prefect counts them: slots of the concurrency limit `gpu:<pool>`.

Slots are leased: those of a killed process come back when its lease runs out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from dynolab.errors import ConfigError
from tasks.runtime.launch.devices import in_line
from tasks.runtime.track.prefect_progress import inside_run

log = logging.getLogger(__name__)

LEASE_SECONDS = 60.0  # the least that the server grants; renewed after three quarters of it


def limit_name(pool: str) -> str:
    """Name of the limit that counts a pool's GPUs."""
    return f"gpu:{pool}"


@contextmanager
def gpu_slots(count: int) -> Iterator[None]:
    """Holds slots of the pool whose worker runs this flow, waiting for them; else does nothing.

    A pool without the limit does not count its GPUs: Kubernetes, say, gives each run its own. A
    server that goes away costs the lease and not the training: the host's own locks still keep its
    GPUs apart.

    **Raises** `ConfigError` where the pool has fewer GPUs.
    """
    pool = _pool()
    if pool is None or not _is_counted(name := limit_name(pool), count):
        yield
        return
    from prefect.concurrency.sync import concurrency

    lease = concurrency(
        name,
        occupy=count,
        strict=True,
        lease_duration=LEASE_SECONDS,
        raise_on_lease_renewal_failure=False,
    )
    with in_line(name.replace(":", "-")):  # the server lets whoever asks at the right moment in
        lease.__enter__()
    try:
        yield
    finally:
        try:
            lease.__exit__(None, None, None)
        except Exception as error:  # what was trained meanwhile must not be lost
            log.warning("the lease of %s was lost before its end: %s", name, error)


def _pool() -> str | None:
    """The work pool of the flow run at work."""
    if not inside_run():
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return run.work_pool_name if run else None


def _is_counted(name: str, count: int) -> bool:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            limit = client.read_global_concurrency_limit_by_name(name).limit
        except ObjectNotFound:
            log.info("Prefect has no limit %s, so the GPUs are not counted there", name)
            return False
    if limit < count:
        raise ConfigError(
            name,
            limit,
            f"{count} GPUs are asked for; use fewer ranks, or set the limit, in Prefect's "
            "Concurrency page, to the number of the pool's GPUs",
        )
    return True
