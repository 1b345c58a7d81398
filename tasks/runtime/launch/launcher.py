"""Runs a rank program on all ranks of a job and leaves no process, port or lock behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from dynolab.errors import ConfigError
from tasks.runtime.launch.local_job import OWNER_VARIABLE, LocalJob, running
from tasks.runtime.launch.rendezvous import Rendezvous, launch_on_hosts

__all__ = ["OWNER_VARIABLE", "launch_ranks"]


def launch_ranks(
    module: str,
    job: Path,
    *,
    ranks: int,
    logs: Path,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float = 0.2,
    rendezvous: Rendezvous | None = None,
) -> None:
    """Run `python -m module job` on `ranks` ranks under torchrun and wait until they end.

    **Arguments**

    - `logs`: folder for `rank-<n>.log` (stdout and stderr of a rank) and `torchrun.log`.
    - `environment`: variables for this host's ranks; they override those inherited from this
      process (`rank_environment`).
    - `while_running`: called in this thread every `poll_seconds`, and once after the ranks ended.
    - `rendezvous`: where other hosts join to share the ranks evenly; default: all run on this host.

    **Raises** `RankFailed` if a rank's exit code is not 0: it names the rank that failed first,
    not those that failed or were ended because of it. `HostLost` if the connection to a host is
    lost. `ConfigError` for an impossible number of ranks. After any exception, and if this process
    is killed, no rank, helper process, port or build lock remains.
    """
    if ranks < 1:
        raise ConfigError("ranks", ranks, "choose 1 or more")
    logs = logs.resolve()
    logs.mkdir(parents=True, exist_ok=True)
    local_job = LocalJob(module=module, job=job.resolve(), logs=logs, ranks=ranks)
    if rendezvous is None:
        _launch_here(local_job, environment, while_running, poll_seconds)
    else:
        launch_on_hosts(local_job, rendezvous, environment, while_running, poll_seconds)


def _launch_here(
    local_job: LocalJob,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float,
) -> None:
    with running(local_job, environment) as mine:
        while True:
            with suppress(subprocess.TimeoutExpired):
                mine.agent.wait(poll_seconds)
            ended = mine.agent.poll() is not None
            while_running()
            if ended:
                break
        failure = mine.failure()
    if failure is not None:
        raise failure.error()
