"""Runs a training on several hosts: the one that starts it, and those that join.

Rank 0 and its supervisor are on the host that starts the job. All hosts share the home's file
system, which is checked before any rank starts. Only hosts with the key of that home may join
(`tasks.runtime.launch.peer`). Hosts exchange heartbeats, so that a lost one ends the job in
seconds; the ranks' own connections would wait half an hour.

torchrun's c10d rendezvous cannot replace this: it checks neither key nor home, and unpickles data
that anybody who reaches its port can write.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from dynolab.errors import ConfigError, HostLost
from dynolab.rank_authentication import SECRET
from dynolab.store import library_versions
from tasks.runtime.launch.local_job import LocalJob, RankEnd, Running, running
from tasks.runtime.launch.peer import Message, Peer
from tasks.runtime.system.processes import free_port, listening_socket
from tasks.runtime.system.secret_files import ranks_secret, signing_key
from tasks.runtime.system.settings import Settings

log = logging.getLogger(__name__)

JOIN_SECONDS = 600.0
AFTER_FAILURE_SECONDS = 5.0
"""After a first failure, how long the other hosts have to fail because of it and to report it."""

SHARED_SECONDS = 60.0
"""The longest a network file system hides new files of other hosts (nfs(5), acdirmax)."""

_POLL_SECONDS = 0.1
_MOST_UNPROVED = 64
"""Most open connections without proof of the key; a further one closes the oldest."""


@dataclass(frozen=True)
class Rendezvous:
    """An address of this host at which `hosts` − 1 others join, which share its home."""

    host: str
    port: int
    hosts: int
    home: Path

    @classmethod
    def of(cls, settings: Settings) -> Rendezvous | None:
        """The rendezvous that is set; None if trainings run on this host alone.

        Raises ConfigError if there are several hosts but no address.
        """
        if settings.hosts == 1:
            return None
        if settings.rendezvous is None:
            raise ConfigError(
                "DYNOLAB_RENDEZVOUS",
                None,
                f"is required for {settings.hosts} hosts; set an address of this host that the "
                "others can reach and a free port, like 10.0.0.1:29400",
            )
        host, _, port = settings.rendezvous.rpartition(":")
        return cls(host, int(port), settings.hosts, settings.home)

    def ranks_each(self, field: str, ranks: int) -> int:
        """Ranks per host; raises ConfigError, naming `field`, if they cannot be shared evenly."""
        each, rest = divmod(ranks, self.hosts)
        if rest:
            raise ConfigError(
                field,
                ranks,
                f"must be a multiple of DYNOLAB_HOSTS = {self.hosts}: every host runs the same "
                "number",
            )
        return each

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass
class Other:
    """Another host: whether it has started its ranks, and its torchrun's exit code at the end."""

    peer: Peer
    ready: bool = False
    code: int | None = None
    failure: RankEnd | None = field(default=None)

    def poll(self) -> None:
        """Read its next message, if there is one; raises HostLost if it is lost."""
        if (message := self.peer.poll()) is not None:
            self._handle(message)

    def _handle(self, message: Message) -> None:
        if "refused" in message:
            field, value, remedy = (str(message.get(n)) for n in ("field", "value", "refused"))
            raise ConfigError(field, value, remedy)
        self.ready = self.ready or message.get("ready") is True
        if isinstance(code := message.get("code"), int):
            end = message.get("failure")
            try:
                self.failure = None if end is None else RankEnd.model_validate(end)
            except ValidationError as error:
                raise HostLost(self.peer.name, "it sent an invalid failure report") from error
            self.code = code


def launch_on_hosts(
    local_job: LocalJob,
    rendezvous: Rendezvous,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float,
) -> None:
    """Like `launch_ranks`, with `local_job.ranks` ranks over all hosts together."""
    each = rendezvous.ranks_each("engine.ranks", local_job.ranks)
    with _joined(rendezvous, while_running) as others:
        own = others[0].peer.own_address
        mine = local_job.model_copy(
            update={
                "ranks": each,
                "hosts": rendezvous.hosts,
                "address": own,
                "endpoint": f"{own}:{free_port(own)}",
            }
        )
        salt = secrets.token_hex(32)
        _assign_jobs(mine, salt, others, while_running)
        secret = {SECRET: ranks_secret(rendezvous.home, salt)}
        with running(mine, {**environment, **secret}) as here:
            try:
                failure = _watch(here, others, while_running, poll_seconds)
            finally:
                for other in others:
                    other.peer.close()  # they end their ranks while this host ends its own
    if failure is not None:
        raise failure.error()


@contextmanager
def _joined(rendezvous: Rendezvous, while_running: Callable[[], None]) -> Iterator[list[Other]]:
    """Wait for all other hosts; the end of the block closes their connections."""
    arrivals = _Arrivals(signing_key(rendezvous.home))
    others: list[Other] = []
    try:
        with _listening(rendezvous) as listener:
            deadline = time.monotonic() + JOIN_SECONDS
            while len(others) < rendezvous.hosts - 1:
                while_running()
                with suppress(OSError):
                    arrivals.add(listener.accept()[0])
                if (host := arrivals.next()) is not None:
                    others.append(host)
                others = [other for other in others if _is_connected(other)]
                if time.monotonic() > deadline:
                    raise ConfigError(
                        "DYNOLAB_HOSTS",
                        rendezvous.hosts,
                        f"{len(others) + 1} of them joined at {rendezvous} in {JOIN_SECONDS:.0f} s;"
                        " run `dynolab join` on the others, with the same DYNOLAB_RENDEZVOUS"
                        + arrivals.describe_strangers(),
                    )
        yield others
    finally:
        arrivals.close()
        for other in others:
            other.peer.close()


class _Arrivals:
    """New connections to the rendezvous; none of them blocks another."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._unproved: list[Peer] = []
        self._strangers: set[str] = set()

    def add(self, connection: socket.socket) -> None:
        """Start the key check of a connection."""
        self._unproved.append(Peer(connection, self._key, "starts"))
        if len(self._unproved) > _MOST_UNPROVED:
            self._unproved.pop(0).close()

    def next(self) -> Other | None:
        """A host that has proved that it has the key, or None; raises ConfigError."""
        for peer in list(self._unproved):
            try:
                hello = peer.poll()
            except HostLost:
                self._unproved.remove(peer)
                self._refuse(peer)
                continue
            if hello is not None:
                self._unproved.remove(peer)
                return _with_same_libraries(peer, hello)
        return None

    def _refuse(self, peer: Peer) -> None:
        peer.close()
        if not peer.has_key and peer.address not in self._strangers:
            self._strangers.add(peer.address)
            log.warning("%s came to the rendezvous%s", peer.address, _WITHOUT_KEY)

    def describe_strangers(self) -> str:
        """Text for an error message: the addresses that came without the key."""
        if not self._strangers:
            return ""
        return f"; {', '.join(sorted(self._strangers))} came{_WITHOUT_KEY}"

    def close(self) -> None:
        """Close the connections that have not proved the key."""
        for peer in self._unproved:
            peer.close()


_WITHOUT_KEY = (
    " without the key of this home: DYNOLAB_HOME must be one folder that all hosts share, or "
    "DYNOLAB_KEY the same on all"
)


def _listening(rendezvous: Rendezvous) -> socket.socket:
    try:
        listener = listening_socket(rendezvous.port, rendezvous.host)
    except OSError as error:
        raise ConfigError(
            "DYNOLAB_RENDEZVOUS",
            str(rendezvous),
            f"this host cannot listen there ({error.strerror or error}): set one of its own "
            "addresses and a port that no other training is using",
        ) from error
    listener.settimeout(_POLL_SECONDS)
    return listener


def _with_same_libraries(peer: Peer, hello: Message) -> Other:
    """The joined host; raises ConfigError if its library versions differ from this host's."""
    peer.name = f"{hello.get('name')} ({peer.address})"
    ours, theirs = library_versions(), hello.get("libraries")
    if theirs != ours:
        peer.close()
        versions = theirs if isinstance(theirs, dict) else {}
        name = next((n for n in ours if versions.get(n) != ours[n]), "libraries")
        raise ConfigError(
            name,
            versions.get(name),
            f"is the version of host {peer.name}, this host has {ours.get(name)}: install the same "
            "on both",
        )
    return Other(peer)


def _is_connected(other: Other) -> bool:
    try:
        other.poll()
    except HostLost:
        other.peer.close()
        return False
    return True


def _assign_jobs(
    mine: LocalJob, salt: str, others: list[Other], while_running: Callable[[], None]
) -> None:
    """Send every host its job; return once each has started it and its log is visible here.

    **Arguments:** `salt`: for the ranks' secret.
    """
    digest = hashlib.sha256(mine.job.read_bytes()).hexdigest()
    local_jobs = [
        mine.model_copy(update={"host": number, "address": other.peer.address})
        for number, other in enumerate(others, start=1)
    ]
    for theirs, other in zip(local_jobs, others, strict=True):
        other.peer.send(share=theirs.model_dump(mode="json"), digest=digest, salt=salt)
    for theirs, other in zip(local_jobs, others, strict=True):
        while not other.ready:
            while_running()
            other.poll()
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + SHARED_SECONDS
        while not theirs.log.exists():
            while_running()
            other.poll()
            if time.monotonic() > deadline:
                raise ConfigError(
                    "DYNOLAB_HOME",
                    str(mine.logs),
                    f"files that host {other.peer.name} writes there do not appear here; it must "
                    "be one folder that all hosts share",
                )
            time.sleep(_POLL_SECONDS)


def _watch(
    here: Running, others: list[Other], while_running: Callable[[], None], poll_seconds: float
) -> RankEnd | None:
    """Wait until every host has ended; returns the first failure, or None."""
    failed_at: float | None = None
    while True:
        with suppress(subprocess.TimeoutExpired):
            here.agent.wait(poll_seconds)
        codes = [here.agent.poll(), *(other.code for other in others)]
        while_running()
        for other in others:
            other.poll()
        if failed_at is None and any(codes):
            failed_at = time.monotonic()
        late = failed_at is not None and time.monotonic() > failed_at + AFTER_FAILURE_SECONDS
        if late or None not in codes:
            break
        if codes[0] is not None:
            time.sleep(poll_seconds)
    ends = [here.failure(), *(other.failure for other in others)]
    return min((end for end in ends if end), key=lambda end: end.order, default=None)
