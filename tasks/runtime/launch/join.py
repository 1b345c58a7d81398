"""A host that gives its cores or GPUs to the trainings of another: `dynolab join`.

    python -m tasks.runtime.launch.join

It waits for a training that is started with the same `DYNOLAB_RENDEZVOUS`, runs its share of the
ranks, and waits for the next. It listens only to who has the key of the home that it sees, and runs
rank programs of this project on job files that it sees there, and nothing else that comes by the
connection.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from dynolab.errors import ConfigError, HostLost
from dynolab.rank_authentication import SECRET
from dynolab.store import library_versions
from tasks.runtime.launch.local_job import LocalJob, Running, running
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
    """Works for one training after the other until an interruption.

    Raises ConfigError where the environment names no rendezvous.
    """
    if settings.rendezvous is None:
        raise ConfigError(
            "DYNOLAB_RENDEZVOUS",
            None,
            "set the address that the host which starts trainings has, like 10.0.0.1:29400",
        )
    log.info("waiting for trainings at %s", settings.rendezvous)
    warned = False
    while True:
        known = join_once(settings.rendezvous, settings.home)
        if not known and not warned:
            log.warning(
                "who listens at %s does not have the key of %s: DYNOLAB_HOME must be one folder "
                "that all hosts share, or DYNOLAB_KEY the same on all",
                settings.rendezvous,
                settings.home,
            )
        warned = not known
        time.sleep(RETRY_SECONDS)


def join_once(rendezvous: str, home: Path) -> bool:
    """Waits for the rendezvous and takes part in what it gives; its end is told in the log.

    Returns whether who listens there has the key of the home.
    """
    with Peer(_connected(rendezvous), signing_key(home), "joins") as peer:
        try:
            peer.send(name=socket.gethostname(), libraries=library_versions())
            work(peer, home)
        except HostLost as lost:  # the ordinary end of a job, too: the other host hangs up
            if peer.known:
                log.info("back to waiting: %s", lost.reason)
        return peer.known


def work(peer: Peer, home: Path) -> None:
    """Runs the share that the other host gives; raises HostLost once it hangs up, or is lost."""
    order = _next_of(peer)
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
        with running(local_job, {SECRET: secret}) as here:
            _serve(peer, here)
    except ConfigError as error:
        log.warning("a job was refused: %s", error)
        reason = f"host {socket.gethostname()} refuses the job: {error.remedy}"
        peer.send(field=error.field, value=str(error.value), refused=reason)
        while True:  # until it has heard
            _next_of(peer)


def _serve(peer: Peer, here: Running) -> None:
    """Tells the other host how the ranks end; raises HostLost."""
    peer.send(ready=True)
    while here.agent.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            here.agent.wait(_POLL_SECONDS)
        peer.poll()
    failure = here.failure()
    end = None if failure is None else failure.model_dump(mode="json")
    peer.send(code=here.agent.returncode, failure=end)
    while True:
        _next_of(peer)


def _checked(order: Message, home: Path) -> LocalJob:
    """The job, where it is one that this host may run and whose job it sees in its home.

    **Raises:** `ConfigError` for every other.
    """
    remedy = "DYNOLAB_HOME must be one folder that all hosts share, under the same path"
    try:
        local_job = LocalJob.model_validate(order.get("share"))
        job, logs = local_job.job.resolve(), local_job.logs.resolve()
        socket.inet_aton(local_job.address)
    except (ValueError, OSError) as error:  # pydantic's ValidationError is a ValueError
        raise ConfigError("share", "…", f"is none that this version runs: {error}") from error
    if not local_job.module.startswith(PROGRAMS):
        raise ConfigError("module", local_job.module, "only rank programs of this project are run")
    if not (job.is_relative_to(home) and logs.is_relative_to(home)):
        raise ConfigError(
            "DYNOLAB_HOME", str(home), f"the job {local_job.job} lies outside of it; {remedy}"
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


def _next_of(peer: Peer) -> Message:
    while (message := peer.poll()) is None:
        time.sleep(_POLL_SECONDS)
    return message


def _connected(rendezvous: str) -> socket.socket:
    host, _, port = rendezvous.rpartition(":")
    while True:
        with suppress(OSError):  # nobody is there yet
            return socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS)
        time.sleep(RETRY_SECONDS)


def main() -> None:
    """Entry point; Ctrl-C and SIGTERM are the ordinary end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with suppress(KeyboardInterrupt), sigterm_as_interrupt():
        join(Settings.from_environment())


if __name__ == "__main__":
    main()
