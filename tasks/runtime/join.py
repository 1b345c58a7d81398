"""A host that gives its cores or GPUs to the trainings of another: `dynolab join`.

    python -m tasks.runtime.join

It waits for a training that is started with the same `DYNOLAB_RENDEZVOUS`, runs its share of the
ranks, and waits for the next. It runs rank programs of this project on job files that it sees
itself, and nothing else that comes by the connection.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from dynolab.errors import ConfigError, HostLost
from dynolab.store import library_versions
from tasks.runtime.peer import Message, Peer
from tasks.runtime.settings import Settings
from tasks.runtime.share import Share, running
from tasks.runtime.stack import sigterm_as_interrupt

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
            "DYNOLAB_RENDEZVOUS", None,
            "set the address that the host which starts trainings has, like 10.0.0.1:29400",
        )  # fmt: skip
    log.info("waiting for trainings at %s", settings.rendezvous)
    while True:
        join_once(settings.rendezvous, settings.home)


def join_once(rendezvous: str, home: Path) -> None:
    """Waits for the rendezvous and takes part in what it gives; its end is told in the log."""
    with Peer(_connected(rendezvous)) as peer:
        try:
            peer.send(name=socket.gethostname(), libraries=library_versions())
            work(peer, home)
        except HostLost as lost:  # the ordinary end of a job, too: the other host hangs up
            log.info("back to waiting: %s", lost.reason)


def work(peer: Peer, home: Path) -> None:
    """Runs the share that the other host gives; until it hangs up, or is lost."""
    order = _next_of(peer)
    try:
        share = _checked(order, Share.model_validate(order.get("share")), home)
    except (ValidationError, ConfigError) as error:
        log.warning("a job was refused: %s", error)
        peer.send(refused=f"host {socket.gethostname()} refuses the job: {error}", home=str(home))
        while True:  # until it has heard
            _next_of(peer)
    log.info("host %d of %d runs %d ranks of %s", share.host, share.hosts, share.ranks, share.job)
    with running(share, {}) as here:
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


def _checked(order: Message, share: Share, home: Path) -> Share:
    """The share, where it is one that this host may run and whose job it sees in its home."""
    if not share.module.startswith(PROGRAMS):
        raise ConfigError("module", share.module, "only rank programs of this project are run")
    remedy = "DYNOLAB_HOME must be one folder that all hosts share, under the same path"
    job, logs = share.job.resolve(), share.logs.resolve()
    if not (job.is_relative_to(home) and logs.is_relative_to(home)):
        raise ConfigError("job", str(share.job), f"lies outside of this host's home; {remedy}")
    try:
        digest = hashlib.sha256(job.read_bytes()).hexdigest()
    except OSError:
        digest = None
    if digest != order.get("digest"):
        raise ConfigError("job", str(share.job), f"this host does not see it; {remedy}")
    return share


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
