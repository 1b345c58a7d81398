"""Where the hosts of a training meet: the host that starts it, and those that join.

Rank 0 and all that supervises it are on the host that starts the job. The others see the same
files: the home is on a file system that all hosts share, which is checked before any rank starts.
Only who has the key of that home takes part (`tasks.runtime.launch.peer`). A connection to each
host carries signs of life, so that a lost one ends the job in seconds; the ranks' own connections
would wait for it for half an hour.

torchrun's c10d rendezvous is no replacement: it knows neither key nor home, and unpickles what
anybody who reaches its port has put there.
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
"""What the other hosts have, after a first failure, to fail of it and to say so."""

SHARED_SECONDS = 60.0
"""How long network file systems hide new files of other hosts, at the most (nfs(5), acdirmax)."""

_POLL_SECONDS = 0.1
_UNKNOWN_AT_ONCE = 64
"""Connections of which nobody knows yet whose they are; further ones end the oldest."""


@dataclass(frozen=True)
class Rendezvous:
    """An address of this host to which `hosts` − 1 others come, who share its home."""

    host: str
    port: int
    hosts: int
    home: Path

    @classmethod
    def of(cls, settings: Settings) -> Rendezvous | None:
        """What the environment asks for; None where trainings run on this host alone.

        Raises ConfigError where several hosts have no address to meet at.
        """
        if settings.hosts == 1:
            return None
        if settings.rendezvous is None:
            raise ConfigError(
                "DYNOLAB_RENDEZVOUS",
                None,
                f"{settings.hosts} hosts need a place to meet; set an address of this host that "
                "the others reach and a free port, like 10.0.0.1:29400",
            )
        host, _, port = settings.rendezvous.rpartition(":")
        return cls(host, int(port), settings.hosts, settings.home)

    def ranks_each(self, field: str, ranks: int) -> int:
        """How many of the ranks every host runs; raises ConfigError, naming the field."""
        each, rest = divmod(ranks, self.hosts)
        if rest:
            raise ConfigError(
                field,
                ranks,
                f"must be a multiple of DYNOLAB_HOSTS = {self.hosts}: every host has as many",
            )
        return each

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass
class Other:
    """A host that joined: whether it is at work, and its torchrun's exit code, once that ended."""

    peer: Peer
    ready: bool = False
    code: int | None = None
    failure: RankEnd | None = field(default=None)

    def poll(self) -> None:
        """Hears how its ranks ended, if they have; raises HostLost where it is gone."""
        if (message := self.peer.poll()) is not None:
            self._take(message)

    def _take(self, message: Message) -> None:
        if "refused" in message:
            field, value, remedy = (str(message.get(n)) for n in ("field", "value", "refused"))
            raise ConfigError(field, value, remedy)
        self.ready = self.ready or message.get("ready") is True
        if isinstance(code := message.get("code"), int):
            end = message.get("failure")
            try:
                self.failure = None if end is None else RankEnd.model_validate(end)
            except ValidationError as error:
                raise HostLost(self.peer.name, "it told no end of a rank") from error
            self.code = code


def launch_on_hosts(
    local_job: LocalJob,
    rendezvous: Rendezvous,
    environment: Mapping[str, str],
    while_running: Callable[[], None],
    poll_seconds: float,
) -> None:
    """As `launch_ranks`, with `local_job.ranks` ranks over all hosts together."""
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
        _share_out(mine, salt, others, while_running)
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
    """The other hosts, once all have come; their connections are closed after the block."""
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
                others = [other for other in others if _still_there(other)]
                if time.monotonic() > deadline:
                    raise ConfigError(
                        "DYNOLAB_HOSTS",
                        rendezvous.hosts,
                        f"{len(others) + 1} of them came to {rendezvous} in {JOIN_SECONDS:.0f} s;"
                        " run `dynolab join` on the others, with the same DYNOLAB_RENDEZVOUS"
                        + arrivals.describe_strangers(),
                    )
        yield others
    finally:
        arrivals.close()
        for other in others:
            other.peer.close()


class _Arrivals:
    """Connections to the rendezvous; none keeps another waiting."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._unknown: list[Peer] = []
        self._strangers: set[str] = set()

    def add(self, connection: socket.socket) -> None:
        """Begins to hear whose it is."""
        self._unknown.append(Peer(connection, self._key, "starts"))
        if len(self._unknown) > _UNKNOWN_AT_ONCE:
            self._unknown.pop(0).close()

    def next(self) -> Other | None:
        """A host that has shown that it has the key, if one has; raises ConfigError."""
        for peer in list(self._unknown):
            try:
                hello = peer.poll()
            except HostLost:
                self._unknown.remove(peer)
                self._refuse(peer)
                continue
            if hello is not None:
                self._unknown.remove(peer)
                return _greeted(peer, hello)
        return None

    def _refuse(self, peer: Peer) -> None:
        peer.close()
        if not peer.known and peer.address not in self._strangers:
            self._strangers.add(peer.address)
            log.warning("%s came to the rendezvous%s", peer.address, _WITHOUT_KEY)

    def describe_strangers(self) -> str:
        """Who came without the key, for people."""
        if not self._strangers:
            return ""
        return f"; {', '.join(sorted(self._strangers))} came{_WITHOUT_KEY}"

    def close(self) -> None:
        """Hangs up on all that are still unknown."""
        for peer in self._unknown:
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
            f"this host cannot listen there ({error.strerror or error}): name one of its own "
            "addresses, and a port that no other training uses now",
        ) from error
    listener.settimeout(_POLL_SECONDS)
    return listener


def _greeted(peer: Peer, hello: Message) -> Other:
    """A host that runs the same libraries as this one; raises ConfigError for another."""
    peer.name = f"{hello.get('name')} ({peer.address})"
    ours, theirs = library_versions(), hello.get("libraries")
    if theirs != ours:
        peer.close()
        versions = theirs if isinstance(theirs, dict) else {}
        name = next((n for n in ours if versions.get(n) != ours[n]), "libraries")
        raise ConfigError(
            name,
            versions.get(name),
            f"host {peer.name} has it, this host has {ours.get(name)}: install the same on both",
        )
    return Other(peer)


def _still_there(other: Other) -> bool:
    try:
        other.poll()
    except HostLost:
        other.peer.close()
        return False
    return True


def _share_out(
    mine: LocalJob, salt: str, others: list[Other], while_running: Callable[[], None]
) -> None:
    """Tells every host its part; returns once each is at work on it and writes where this reads.

    **Arguments:** `salt`: of the ranks' secret.
    """
    digest = hashlib.sha256(mine.job.read_bytes()).hexdigest()
    shares = [
        mine.model_copy(update={"host": number, "address": other.peer.address})
        for number, other in enumerate(others, start=1)
    ]
    for theirs, other in zip(shares, others, strict=True):
        other.peer.send(share=theirs.model_dump(mode="json"), digest=digest, salt=salt)
    for theirs, other in zip(shares, others, strict=True):
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
                    f"what host {other.peer.name} writes there does not arrive here; it must be "
                    "one folder that all hosts share",
                )
            time.sleep(_POLL_SECONDS)


def _watch(
    here: Running, others: list[Other], while_running: Callable[[], None], poll_seconds: float
) -> RankEnd | None:
    """Waits for the end on every host; returns the first failure, or None where all is well."""
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
