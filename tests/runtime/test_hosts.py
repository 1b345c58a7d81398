"""Two hosts of one job, both on loopback here: how they meet, fail, and are refused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from test_devices import free_devices

from dynolab.errors import ConfigError, HostLost, RankFailed
from tasks.runtime.launch import (
    join as join_module,
    peer as peer_module,
    rendezvous as rendezvous_module,
)
from tasks.runtime.launch.join import join_once
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.launch.local_job import LocalJob, Running, interface_of
from tasks.runtime.launch.peer import Peer
from tasks.runtime.launch.rendezvous import Other, Rendezvous
from tasks.runtime.system.processes import free_port, listening_socket, marked_processes
from tasks.runtime.system.secret_files import KEY
from tasks.runtime.system.settings import Settings
from tests.flows.lab import until

HERE = Path(__file__).parent
SECRET = b"a key that both have"


@pytest.fixture
def rendezvous(tmp_path: Path) -> Rendezvous:
    return Rendezvous("127.0.0.1", free_port(), 2, tmp_path)


@pytest.fixture(autouse=True)
def fake_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joining host runs the fake rank program, too; ranks that sleep are not waited for."""
    monkeypatch.setattr(rendezvous_module, "AFTER_FAILURE_SECONDS", 0.5)
    monkeypatch.setattr(join_module, "PROGRAMS", ("fake_rank",))
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@contextmanager
def joining(
    rendezvous: Rendezvous, home: Path, work: Callable[[str, Path], object] = join_once
) -> Iterator[None]:
    """Another host takes part once; what ends it is raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work(str(rendezvous), home)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=run, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.join(30)
        assert not other.is_alive(), "the other host did not go back to waiting"
    assert errors == []


def launch(
    rendezvous: Rendezvous,
    folder: Path,
    *actions: list[str],
    while_running: Callable[[], None] = lambda: None,
) -> None:
    job = {"folder": str(folder), "ranks": {str(r): a for r, a in enumerate(actions)}}
    (folder / "job.json").write_text(json.dumps(job))
    launch_ranks(
        "fake_rank",
        folder / "job.json",
        ranks=len(actions),
        logs=folder / "logs",
        environment={},
        while_running=while_running,
        poll_seconds=0.05,
        rendezvous=rendezvous,
    )


def environment(folder: Path, rank: int) -> dict[str, str]:
    return dict(json.loads((folder / f"rank-{rank}.json").read_text())["environment"])


def nothing_is_left(folder: Path) -> bool:
    jobs = {environment(folder, rank)["DYNOLAB_JOB"] for rank in (0, 1)}
    left = [pid for job in jobs for pid in marked_processes(f"DYNOLAB_JOB={job}")]
    return not left and not list(folder.glob("dynolab-ranks-*"))


@pytest.mark.ranks
def test_two_hosts_share_the_ranks_whoever_calls_before_and_leave_nothing(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    hello = json.dumps({"name": "stranger", "libraries": {}}).encode() + b"\n"
    contents = [b"GET / HTTP/1.1\r\n\r\n", b"", b'["list"]\n', b"{" * 2**21, b"\n", hello]
    contents += [b"ab" * 32 + b"\n" + b"cd" * 32 + b" " + hello, b"ab" * 32 + b"\n" + hello]
    with ExitStack() as silent:

        def after_strangers(address: str, home: Path) -> None:
            for content in contents:
                with connected(rendezvous) as stranger, suppress(OSError):
                    stranger.sendall(content)
            for _ in range(3):
                silent.enter_context(connected(rendezvous))
            assert join_once(address, home)

        with joining(rendezvous, tmp_path, after_strangers):
            launch(rendezvous, tmp_path, [], [])
    for rank in (0, 1):
        seen = environment(tmp_path, rank)
        assert (seen["RANK"], seen["LOCAL_RANK"]) == (str(rank), "0")
        assert (seen["WORLD_SIZE"], seen["LOCAL_WORLD_SIZE"]) == ("2", "1")
        assert seen["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")
    assert environment(tmp_path, 0)["DYNOLAB_JOB"] != environment(tmp_path, 1)["DYNOLAB_JOB"]
    assert nothing_is_left(tmp_path)


@pytest.mark.ranks
def test_sixteen_ranks_on_two_hosts_hold_the_devices_of_both(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here both hosts lock devices in one folder, so that each holds eight of the sixteen."""
    names = [str(number) for number in range(16)]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("DYNOLAB_DEVICES", ",".join(names))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.13.0+cpu")
    all_wait = [f"wait-for-rank-{rank}.json" for rank in range(16)]
    free: list[list[str]] = []

    def look() -> None:
        if all((tmp_path / f"rank-{rank}.json").exists() for rank in range(16)):
            free.append(free_devices(names))

    with joining(rendezvous, tmp_path):
        launch(rendezvous, tmp_path, *([*all_wait, "rest"] for _ in range(16)), while_running=look)
    seen = [environment(tmp_path, rank) for rank in range(16)]
    held = [set(at["CUDA_VISIBLE_DEVICES"].split(",")) for at in seen]
    assert held[:8] == 8 * held[:1] and held[8:] == 8 * held[8:9]
    assert held[0] | held[8] == set(names) and not held[0] & held[8]
    assert [at["LOCAL_RANK"] for at in seen] == 2 * names[:8]
    assert free[0] == [] and free_devices(names) == names
    assert nothing_is_left(tmp_path)


@pytest.mark.ranks
def test_a_rank_that_fails_on_another_host_is_named_with_its_last_lines(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    with joining(rendezvous, tmp_path), pytest.raises(RankFailed) as failed:
        launch(rendezvous, tmp_path, ["sleep"], ["wait-for-rank-0.json", "raise"])
    assert failed.value.rank == 1
    assert failed.value.last_lines[-1] == "RuntimeError: rank 1 has a bug"
    assert nothing_is_left(tmp_path)


@pytest.mark.ranks
def test_a_killed_rank_here_ends_the_ranks_there(rendezvous: Rendezvous, tmp_path: Path) -> None:
    with (
        joining(rendezvous, tmp_path),
        pytest.raises(RankFailed, match="rank 0 was killed by SIGKILL"),
    ):
        launch(rendezvous, tmp_path, ["wait-for-rank-1.json", "kill"], ["sleep"])
    assert nothing_is_left(tmp_path)


@pytest.mark.ranks
def test_an_interruption_here_ends_the_ranks_there(rendezvous: Rendezvous, tmp_path: Path) -> None:
    def interrupt() -> None:
        if all((tmp_path / f"rank-{rank}.json").exists() for rank in (0, 1)):
            raise KeyboardInterrupt

    with joining(rendezvous, tmp_path), pytest.raises(KeyboardInterrupt):
        launch(rendezvous, tmp_path, ["sleep"], ["sleep"], while_running=interrupt)
    assert nothing_is_left(tmp_path)


def test_a_silent_stranger_does_not_keep_an_interruption_waiting(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    strangers: list[socket.socket] = []
    calls: list[float] = []

    def interrupt_soon() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            strangers.append(connected(rendezvous))
        if len(calls) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(rendezvous, tmp_path, [], [], while_running=interrupt_soon)
    strangers[0].close()
    assert max(later - earlier for earlier, later in pairwise(calls)) < peer_module.MEET_SECONDS / 2


def test_a_host_without_the_key_is_named_and_ends_nothing(
    rendezvous: Rendezvous,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(rendezvous_module, "JOIN_SECONDS", 2.0)
    known: list[bool] = []

    def work(address: str, home: Path) -> None:
        known.append(join_once(address, home))

    remedy = "127.0.0.1 came without the key of this home: DYNOLAB_HOME must be one folder that all"
    with (
        joining(rendezvous, tmp_path / "another", work),
        pytest.raises(ConfigError, match=f"DYNOLAB_HOSTS = 2: 1 of them joined .*; {remedy}"),
    ):
        launch(rendezvous, tmp_path, [], [])
    assert known == [False]
    assert "127.0.0.1 came to the rendezvous without the key of this home" in caplog.text


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1"])
@pytest.mark.parametrize("job", ["a\0b", "x" * 5000, "missing.json"])
def test_an_impostor_at_the_rendezvous_ends_no_host_that_waits(
    address: str, job: str, tmp_path: Path
) -> None:
    share = {"module": "fake_rank", "job": f"{tmp_path}/{job}", "logs": str(tmp_path), "ranks": 1}
    share |= {"hosts": 2, "host": 1, "endpoint": "127.0.0.1:1", "address": address}
    order = json.dumps({"share": share, "digest": None}).encode() + b"\n"
    nonce = b"ab" * 32 + b"\n"
    for content in (order, nonce + order, nonce + b"cd" * 32 + b" " + order):
        with listening_socket() as impostor:
            host, port = impostor.getsockname()
            with joining(Rendezvous(host, port, 2, tmp_path), tmp_path):
                connection, _ = impostor.accept()
                connection.settimeout(15)
                with connection, suppress(ConnectionError):
                    connection.sendall(content)
                    while connection.recv(2**16):
                        pass  # until it hangs up
    assert not list(tmp_path.glob("dynolab-ranks-*"))


def test_a_host_that_waits_tells_once_of_an_impostor_and_waits_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(join_module, "RETRY_SECONDS", 0.01)
    meetings = 0

    def impostor(rendezvous: str, home: Path, grace_seconds: float) -> bool:
        nonlocal meetings
        meetings += 1
        if meetings == 5:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr(join_module, "join_once", impostor)
    variables = {"DYNOLAB_HOME": str(tmp_path), "DYNOLAB_RENDEZVOUS": "10.0.0.1:29400"}
    with pytest.raises(KeyboardInterrupt):
        join_module.join(Settings.from_environment(variables))
    assert caplog.text.count("does not have the key of") == 1


def test_a_host_with_another_home_is_named(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "ab" * 32)
    with (
        joining(rendezvous, tmp_path / "another"),
        pytest.raises(ConfigError, match=r"DYNOLAB_HOME = '.*another': .* that all hosts share"),
    ):
        launch(rendezvous, tmp_path, [], [])


@pytest.mark.parametrize("job", ["missing.json", "other.json", "../outside.json"])
def test_a_host_that_sees_another_job_or_none_refuses_it(job: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "other.json").write_text("{}")
    (tmp_path / "outside.json").write_text("told")
    share = LocalJob(module="fake_rank", job=home / job, logs=home, ranks=1)
    for digest in (hashlib.sha256(b"told").hexdigest(), "", None):
        order = {"digest": digest, "share": share.model_dump(mode="json")}
        with pytest.raises(ConfigError, match="that all hosts share, under the same path"):
            join_module._checked(order, home)


@pytest.mark.parametrize(
    "changes", [{"address": "nowhere"}, {"job": "a\0b"}, {"ranks": 0}, {"logs": 5}, None]
)
def test_a_share_that_is_none_is_refused(changes: dict[str, Any] | None, tmp_path: Path) -> None:
    share = LocalJob(module="fake_rank", job=tmp_path / "job.json", logs=tmp_path, ranks=1)
    order = {"share": None if changes is None else share.model_dump(mode="json") | changes}
    with pytest.raises(ConfigError, match=r"share = .*is not valid in this version"):
        join_module._checked(order, tmp_path)


@pytest.mark.ranks
def test_a_host_whose_files_do_not_arrive_is_named(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_module, "SHARED_SECONDS", 0.3)
    monkeypatch.setattr(LocalJob, "log", property(lambda share: tmp_path / f"{time.time_ns()}.log"))
    with (
        joining(rendezvous, tmp_path),
        pytest.raises(ConfigError, match=r"DYNOLAB_HOME = .* writes there do not appear here"),
    ):
        launch(rendezvous, tmp_path, ["sleep"], ["sleep"])


OTHER_VERSIONS = {**join_module.library_versions(), "torch": "1.0"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PROGRAMS", ("tasks.ranks.",), "must be a rank program"),
        ("library_versions", lambda: OTHER_VERSIONS, r"torch = '1\.0': .*this host has"),
    ],
    ids=["runs rank programs alone", "has other libraries"],
)
def test_a_host_that_cannot_run_the_job_is_named(
    name: str,
    value: object,
    message: str,
    rendezvous: Rendezvous,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(join_module, name, value)
    with joining(rendezvous, tmp_path), pytest.raises(ConfigError, match=message):
        launch(rendezvous, tmp_path, [], [])


def test_hosts_that_do_not_come_are_counted(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_module, "JOIN_SECONDS", 0.3)
    with pytest.raises(ConfigError, match=r"DYNOLAB_HOSTS = 2: 1 of them joined .*dynolab join"):
        launch(rendezvous, tmp_path, [], [])


def test_ranks_that_cannot_be_shared_evenly_are_refused(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"engine\.ranks = 3: .*multiple of DYNOLAB_HOSTS = 2"):
        launch(rendezvous, tmp_path, [], [], [])


def test_an_address_that_is_taken_or_another_hosts_is_refused(tmp_path: Path) -> None:
    with (
        listening_socket() as taken,
        pytest.raises(ConfigError, match="no other training is using"),
    ):
        launch(Rendezvous("127.0.0.1", taken.getsockname()[1], 2, tmp_path), tmp_path, [], [])
    with pytest.raises(ConfigError, match="one of its own addresses"):
        launch(Rendezvous("192.0.2.1", 29400, 2, tmp_path), tmp_path, [], [])


def connected(rendezvous: Rendezvous) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((rendezvous.host, rendezvous.port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


class OtherEnd:
    """The bare other end of a peer's connection, which has the key."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.lines = connection, connection.makefile("rb")
        theirs, mine = self.lines.readline().strip(), b"ab" * 32
        connection.sendall(mine + b"\n")
        self._seal = peer_module._Seal(SECRET, "joins", mine, theirs)
        self._expected = peer_module._Seal(SECRET, "starts", theirs, mine)

    def sealed(self, *contents: bytes) -> bytes:
        """Lines as they are sent."""
        return b"".join(self._seal.next(line) + b" " + line + b"\n" for line in contents)

    def update(self) -> bytes:
        """The next line's content."""
        seal, _, content = self.lines.readline().strip().partition(b" ")
        assert seal == self._expected.next(content)
        return content


@contextmanager
def bare_pair() -> Iterator[tuple[Peer, socket.socket]]:
    """A peer, and the bare other end of its connection."""
    with listening_socket() as listener:
        bare = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    with bare, Peer(connection, SECRET, "starts") as peer:
        yield peer, bare


@contextmanager
def pair() -> Iterator[tuple[Peer, OtherEnd]]:
    """A peer, and the other end of its connection, which has shown that it has the key."""
    with bare_pair() as (peer, bare):
        other = OtherEnd(bare)
        bare.sendall(other.sealed(b"{}"))
        until(lambda: peer.has_key, 10)
        yield peer, other


def until_lost(peer: Peer, allowed: Set[str] = frozenset()) -> str:
    """Why the other end was lost; before that it said one message with the allowed keys."""
    deadline, heard = time.monotonic() + 10, []
    with pytest.raises(HostLost) as lost:
        while time.monotonic() < deadline:
            if (message := peer.poll()) is not None:
                heard.append(set(message))
            time.sleep(0.01)
    assert heard == ([set(allowed)] if allowed else [])
    return lost.value.reason


def test_a_silent_host_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "LOST_SECONDS", 0.5)
    with pair() as (peer, _):
        assert until_lost(peer).startswith("no sign of life for")


def test_who_does_not_show_the_key_in_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "MEET_SECONDS", 0.5)
    for first in (b"", b"ab" * 32 + b"\n"):
        with bare_pair() as (peer, bare):
            bare.sendall(first)
            assert until_lost(peer) == peer_module.STRANGER
            with pytest.raises(HostLost):
                peer.send(code=1)


def test_a_hosts_last_message_is_heard_before_its_loss() -> None:
    with pair() as (peer, other):
        assert other.update() == b"{}", "a sign of life"
        other.socket.sendall(other.sealed(b"{}", b'{"code": 1}') + b'{"hal')
        other.lines.close()
        other.socket.close()
        heard = []
        with pytest.raises(HostLost, match=r"it closed its connection.*newest resume state"):
            while True:
                if (message := peer.poll()) is not None:
                    heard.append(message)
        assert heard == [{"code": 1}]


@pytest.mark.parametrize("content", [b"[]", b"\xff", b"[" * 100_000, b"1"])
def test_what_is_no_message_ends_the_connection(content: bytes) -> None:
    with pair() as (peer, other):
        other.socket.sendall(other.sealed(content))
        assert until_lost(peer) == "it sent an invalid message"


def test_a_line_without_end_ends_the_connection() -> None:
    with pair() as (peer, other), suppress(OSError):
        other.socket.sendall(b"x" * (2**20 + 1))
        assert until_lost(peer) == "it sent an invalid message"


def test_nothing_on_the_way_repeats_changes_or_answers_a_line_with_itself() -> None:
    def repeated(other: OtherEnd) -> bytes:
        return other.sealed(b'{"code": 1}') * 2

    def changed(other: OtherEnd) -> bytes:
        return other.sealed(b'{"code": 0}') + other.sealed(b'{"code": 1}').replace(b"1}", b"2}")

    def left_out(other: OtherEnd) -> bytes:
        first, _, last = (other.sealed(b'{"code": 1}') for _ in range(3))
        return first + last

    def reflected(other: OtherEnd) -> bytes:
        return other.sealed(b'{"code": 1}') + other.lines.readline()

    for attack in (repeated, changed, left_out, reflected):
        with pair() as (peer, other):
            other.socket.sendall(attack(other))
            assert until_lost(peer, {"code"}) == "it sent a line without the key of this home"


def test_a_reflected_nonce_shows_no_key() -> None:
    with bare_pair() as (peer, bare):
        lines = bare.makefile("rb")
        bare.sendall(lines.readline())
        bare.sendall(lines.readline())  # its own first sign of life
        assert until_lost(peer) == peer_module.STRANGER


def test_an_end_that_is_none_is_not_believed() -> None:
    with pair() as (peer, bare):
        bare.socket.sendall(bare.sealed(b'{"code": 1, "failure": {"rank": "all"}}'))
        with pytest.raises(HostLost, match="it sent an invalid failure report"):
            other = Other(peer)
            while other.code is None:
                other.poll()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DYNOLAB_HOSTS", "0"),
        ("DYNOLAB_HOSTS", "-2"),
        ("DYNOLAB_HOSTS", "two"),
        ("DYNOLAB_RENDEZVOUS", "10.0.0.1"),
        ("DYNOLAB_RENDEZVOUS", "10.0.0.1:0"),
        ("DYNOLAB_RENDEZVOUS", "10.0.0.1:99999"),
        ("DYNOLAB_RENDEZVOUS", "http://10.0.0.1:29400"),
        ("DYNOLAB_RENDEZVOUS", ":29400"),
    ],
)
def test_what_is_no_number_of_hosts_and_no_address_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Settings.from_environment({name: value})


def test_several_hosts_need_an_address() -> None:
    with pytest.raises(ConfigError, match="DYNOLAB_RENDEZVOUS"):
        Rendezvous.of(Settings.from_environment({"DYNOLAB_HOSTS": "2"}))
    assert Rendezvous.of(Settings.from_environment({})) is None


def test_a_signal_ends_a_host_that_waits(rendezvous: Rendezvous) -> None:
    variables = os.environ | {"DYNOLAB_RENDEZVOUS": str(rendezvous)}
    waiting = subprocess.Popen(
        [sys.executable, "-m", "tasks.runtime.launch.join"],
        env=variables,
        cwd=HERE.parents[1],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    assert f"waiting for trainings at {rendezvous}" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(10) == 0
    assert "Traceback" not in waiting.stderr.read()


def test_a_torchrun_that_lost_the_others_is_no_cause(tmp_path: Path) -> None:
    def ended(code: int, folder: Path) -> Running:
        (tmp_path / folder).mkdir(exist_ok=True)
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])
        process.wait()
        share = LocalJob(module="fake_rank", job=tmp_path / "job.json", logs=tmp_path, ranks=1)
        return Running(share, process, tmp_path / folder)

    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rank-0.json").write_text(json.dumps({"time": 5.0, "exit_code": 1}))
    ends = [ended(1, Path("here")).failure(), ended(1, Path("there")).failure()]
    assert [end.rank for end in ends if end] == [0, None]
    assert min((end for end in ends if end), key=lambda end: end.order).rank == 0
    assert ended(0, Path("there")).failure() is None
