"""`dynolab join`: lends this host's cores or GPUs to trainings that another host starts.

    python -m tasks.runtime.launch.join

It waits for a training with the same `DYNOLAB_RENDEZVOUS`, runs its share of the ranks, and waits
for the next. It accepts messages only from a host that has the key of the same home, and runs only
rank programs of this project, on job files in that home.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dynolab.errors import ConfigError, HostLost
from dynolab.rank_authentication import SECRET
from dynolab.store import library_versions
from tasks.runtime.launch.local_job import LocalJob, Running, running
from tasks.runtime.launch.notice import Notice
from tasks.runtime.launch.peer import Message, Peer
from tasks.runtime.servers.standing_servers import sigterm_as_interrupt
from tasks.runtime.system.secret_files import ranks_secret, signing_key
from tasks.runtime.system.settings import Settings

log = logging.getLogger(__name__)

PROGRAMS = ("tasks.ranks.",)
RETRY_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.2


def join(settings: Settings) -> None:
    """Run ranks of one training after the other until an interruption.

    Raises ConfigError if no rendezvous is set.
    """
    if settings.rendezvous is None:
        raise ConfigError(
            "DYNOLAB_RENDEZVOUS",
            None,
            "set the address of the host that starts trainings, like 10.0.0.1:29400",
        )
    log.info("waiting for trainings at %s", settings.rendezvous)
    warned = False
    while True:
        has_key = join_once(settings.rendezvous, settings.home, settings.grace_seconds)
        if not has_key and not warned:
            log.warning(
                "the host at %s does not have the key of %s: DYNOLAB_HOME must be one folder "
                "that all hosts share, or DYNOLAB_KEY the same on all",
                settings.rendezvous,
                settings.home,
            )
        warned = not has_key
        time.sleep(RETRY_SECONDS)


def join_once(rendezvous: str, home: Path, grace_seconds: float = 0) -> bool:
    """Wait for the rendezvous and run this host's part of one job; log how it ended.

    Returns whether the host at the rendezvous has the key of the home.
    """
    with Peer(_connected(rendezvous), signing_key(home), "joins") as peer:
        try:
            peer.send(name=socket.gethostname(), libraries=library_versions())
            work(peer, home, grace_seconds)
        except HostLost as lost:  # also the normal end of a job: the other host hangs up
            if peer.has_key:
                log.info("back to waiting: %s", lost.reason)
        return peer.has_key


def work(peer: Peer, home: Path, grace_seconds: float = 0) -> None:
    """Run the ranks that the other host assigns; raises HostLost once that host hangs up.

    After SIGTERM the other host has `grace_seconds` to save the training's state and hang up.
    """
    order = _next_message(peer)
    try:
        local_job = _checked(order, home)
        log.info(
            "host %d of %d runs %d ranks of %s",
            local_job.host,
            local_job.hosts,
            local_job.ranks,
            local_job.job,
        )
        secret = ranks_secret(home, str(order.get("salt")))
        with Notice(grace_seconds) as notice:
            try:
                with running(local_job, {SECRET: secret}) as here:
                    _serve(peer, here, notice.check)
            except HostLost:
                notice.hand_on()
                raise
    except ConfigError as error:
        log.warning("refused a job: %s", error)
        reason = f"host {socket.gethostname()} refuses the job: {error.remedy}"
        peer.send(field=error.field, value=str(error.value), refused=reason)
        while True:  # until the other host has read it and hangs up
            _next_message(peer)


def _serve(peer: Peer, here: Running, check: Callable[[], None]) -> None:
    """Report to the other host how the ranks end; raises HostLost when it hangs up."""
    peer.send(ready=True)
    while here.agent.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            here.agent.wait(_POLL_SECONDS)
        check()
        peer.poll()
    failure = here.failure()
    end = None if failure is None else failure.model_dump(mode="json")
    peer.send(code=here.agent.returncode, failure=end)
    while True:
        _next_message(peer)


def _checked(order: Message, home: Path) -> LocalJob:
    """The local job of an order, if it runs a rank program on a job file in this host's home.

    **Raises** `ConfigError` otherwise.
    """
    remedy = "DYNOLAB_HOME must be one folder that all hosts share, under the same path"
    try:
        local_job = LocalJob.model_validate(order.get("share"))
        job, logs = local_job.job.resolve(), local_job.logs.resolve()
        socket.inet_aton(local_job.address)
    except (ValueError, OSError) as error:  # pydantic's ValidationError is a ValueError
        raise ConfigError("share", "…", f"is not valid in this version: {error}") from error
    if not local_job.module.startswith(PROGRAMS):
        raise ConfigError("module", local_job.module, "must be a rank program of this project")
    if not (job.is_relative_to(home) and logs.is_relative_to(home)):
        raise ConfigError(
            "DYNOLAB_HOME", str(home), f"does not contain the job {local_job.job}; {remedy}"
        )
    try:
        digest = hashlib.sha256(job.read_bytes()).hexdigest()
    except OSError:
        digest = ""
    if not digest or not hmac.compare_digest(digest, str(order.get("digest"))):
        raise ConfigError(
            "DYNOLAB_HOME", str(home), f"this host does not see the job {local_job.job}; {remedy}"
        )
    return local_job


def _next_message(peer: Peer) -> Message:
    while (message := peer.poll()) is None:
        time.sleep(_POLL_SECONDS)
    return message


def _connected(rendezvous: str) -> socket.socket:
    host, _, port = rendezvous.rpartition(":")
    while True:
        with suppress(OSError):  # no training has started yet
            return socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        time.sleep(RETRY_SECONDS)


def main() -> None:
    """Entry point; runs until Ctrl-C or SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with suppress(KeyboardInterrupt), sigterm_as_interrupt():
        join(Settings.from_environment())


if __name__ == "__main__":
    main()
