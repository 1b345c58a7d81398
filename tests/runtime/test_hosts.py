"""Two hosts of one job, both on loopback here: how they meet, fail, and are refused."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dynolab.errors import ConfigError, HostLost, RankFailed
from tasks.runtime import join as join_module
from tasks.runtime import peer as peer_module
from tasks.runtime import rendezvous as rendezvous_module
from tasks.runtime.join import join_once
from tasks.runtime.launcher import launch_ranks
from tasks.runtime.peer import Peer
from tasks.runtime.processes import free_port, listening_socket, marked_processes
from tasks.runtime.rendezvous import Other, Rendezvous
from tasks.runtime.settings import Settings
from tasks.runtime.share import Running, Share, interface_of

HERE = Path(__file__).parent


@pytest.fixture
def rendezvous() -> Rendezvous:
    return Rendezvous("127.0.0.1", free_port(), 2)


@pytest.fixture(autouse=True)
def fake_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joining host runs the fake rank program, too; ranks that sleep are not waited for."""
    monkeypatch.setattr(rendezvous_module, "AFTER_FAILURE_SECONDS", 0.5)
    monkeypatch.setattr(join_module, "PROGRAMS", ("fake_rank",))
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@contextmanager
def joining(
    rendezvous: Rendezvous, home: Path, work: Callable[[str, Path], None] = join_once
) -> Iterator[None]:
    """Another host takes part once."""
    other = threading.Thread(target=work, args=[str(rendezvous), home])
    other.start()
    try:
        yield
    finally:
        other.join(30)
        assert not other.is_alive(), "the other host did not go back to waiting"


def launch(
    rendezvous: Rendezvous, folder: Path, *actions: list[str],
    while_running: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    job = {"folder": str(folder), "ranks": {str(r): a for r, a in enumerate(actions)}}
    (folder / "job.json").write_text(json.dumps(job))
    launch_ranks(
        "fake_rank", folder / "job.json", ranks=len(actions), logs=folder / "logs",
        environment={}, while_running=while_running, poll_seconds=0.05, rendezvous=rendezvous,
    )  # fmt: skip


def environment(folder: Path, rank: int) -> dict[str, str]:
    seen: dict[str, str] = json.loads((folder / f"rank-{rank}.json").read_text())["environment"]
    return seen


def nothing_is_left(folder: Path) -> bool:
    jobs = {environment(folder, rank)["DYNOLAB_JOB"] for rank in (0, 1)}
    left = [pid for job in jobs for pid in marked_processes(f"DYNOLAB_JOB={job}")]
    return not left and not list(folder.glob("dynolab-ranks-*"))


@pytest.mark.ranks
def test_two_hosts_share_the_ranks_whoever_calls_before_and_leave_nothing(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    def after_strangers(address: str, home: Path) -> None:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"", b'["list"]\n', b"{" * 2**21):
            with connected(rendezvous) as stranger:
                stranger.sendall(said)
        join_once(address, home)

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


def test_a_host_with_another_home_is_named(rendezvous: Rendezvous, tmp_path: Path) -> None:
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
    order = {"digest": hashlib.sha256(b"told").hexdigest()}
    share = Share(module="fake_rank", job=home / job, logs=home, ranks=1)
    with pytest.raises(ConfigError, match="that all hosts share, under the same path"):
        join_module._checked(order, share, home)


@pytest.mark.ranks
def test_a_host_whose_files_do_not_arrive_is_named(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_module, "SHARED_SECONDS", 0.3)
    monkeypatch.setattr(Share, "log", property(lambda share: tmp_path / f"{time.time_ns()}.log"))
    with (
        joining(rendezvous, tmp_path),
        pytest.raises(ConfigError, match=r"DYNOLAB_HOME = .* writes there does not arrive here"),
    ):
        launch(rendezvous, tmp_path, ["sleep"], ["sleep"])


def test_a_host_runs_rank_programs_alone(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_module, "PROGRAMS", ("tasks.ranks.",))
    with joining(rendezvous, tmp_path), pytest.raises(ConfigError, match="only rank programs"):
        launch(rendezvous, tmp_path, [], [])


def test_a_host_with_other_libraries_is_refused(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {**join_module.library_versions(), "torch": "1.0"}
    monkeypatch.setattr(join_module, "library_versions", lambda: theirs)
    with (
        joining(rendezvous, tmp_path),
        pytest.raises(ConfigError, match=r"torch = '1\.0': .*this host has"),
    ):
        launch(rendezvous, tmp_path, [], [])


def test_hosts_that_do_not_come_are_counted(
    rendezvous: Rendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous_module, "JOIN_SECONDS", 0.3)
    with pytest.raises(ConfigError, match=r"DYNOLAB_HOSTS = 2: 1 of them came .*dynolab join"):
        launch(rendezvous, tmp_path, [], [])


def test_ranks_that_cannot_be_shared_evenly_are_refused(
    rendezvous: Rendezvous, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"engine\.ranks = 3: .*multiple of DYNOLAB_HOSTS = 2"):
        launch(rendezvous, tmp_path, [], [], [])


def test_an_address_that_is_taken_or_another_hosts_is_refused(tmp_path: Path) -> None:
    with (
        listening_socket() as taken,
        pytest.raises(ConfigError, match="no other training uses now"),
    ):
        launch(Rendezvous("127.0.0.1", taken.getsockname()[1], 2), tmp_path, [], [])
    with pytest.raises(ConfigError, match="one of its own addresses"):
        launch(Rendezvous("192.0.2.1", 29400, 2), tmp_path, [], [])


def connected(rendezvous: Rendezvous) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((rendezvous.host, rendezvous.port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@contextmanager
def pair() -> Iterator[tuple[Peer, socket.socket]]:
    """A peer, and the bare other end of its connection."""
    with listening_socket() as listener:
        bare = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
    with bare, Peer(connection) as peer:
        yield peer, bare


def until_lost(peer: Peer) -> str:
    deadline = time.monotonic() + 10
    with pytest.raises(HostLost) as lost:
        while time.monotonic() < deadline:
            peer.poll()
            time.sleep(0.01)
    return lost.value.reason


def test_a_silent_host_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "LOST_SECONDS", 0.5)
    with pair() as (peer, _):
        assert until_lost(peer).startswith("no sign of life for")


def test_a_hosts_last_message_is_heard_before_its_loss() -> None:
    with pair() as (peer, bare):
        assert bare.recv(10) == b"{}\n", "a sign of life"
        bare.sendall(b'{}\n{"code": 1}\n{"hal')
        bare.close()
        heard = []
        with pytest.raises(HostLost, match=r"it closed its connection.*newest resume state"):
            while True:
                if (message := peer.poll()) is not None:
                    heard.append(message)
        assert heard == [{"code": 1}]


@pytest.mark.parametrize(
    "said", [b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n", b"1\n", b"x" * (2**20 + 1)]
)
def test_what_is_no_message_ends_the_connection(said: bytes) -> None:
    with pair() as (peer, bare):
        bare.sendall(said)
        assert until_lost(peer) == "it sent what is no message"


def test_an_end_that_is_none_is_not_believed() -> None:
    with pair() as (peer, bare):
        bare.sendall(b'{"code": 1, "failure": {"rank": "all"}}\n')
        with pytest.raises(HostLost, match="it told no end of a rank"):
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
        [sys.executable, "-m", "tasks.runtime.join"], env=variables, cwd=HERE.parents[1],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
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
        share = Share(module="fake_rank", job=tmp_path / "job.json", logs=tmp_path, ranks=1)
        return Running(share, process, tmp_path / folder)

    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "rank-0.json").write_text(json.dumps({"time": 5.0, "exit_code": 1}))
    ends = [ended(1, Path("here")).failure(), ended(1, Path("there")).failure()]
    assert [end.rank for end in ends if end] == [0, None]
    assert min((end for end in ends if end), key=lambda end: end.order).rank == 0
    assert ended(0, Path("there")).failure() is None
