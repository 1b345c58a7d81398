"""The ways into a running platform: for another user, for strangers at its ports, for web pages.

A way is open where something comes back or changes; what is told of it says what.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.platform import outsider
from tests.platform.outsider import Target

Found = dict[str, str | None]
"""Way → what it got; None where it is closed."""

NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--no-new-privs")
PYTHON = "/usr/bin/python3"  # the tests' own may lie where other users cannot come
STRANGERS = 40
ARTIFACT = "0/doors/artifacts/kept.txt"
EVIL = "http://evil.example"
WORDS = {
    "garbage": os.urandom(2000),
    "silence": b"",
    "half a request": b"POST /api/flows/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "an endless head": b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200_000,
}


class Owner:
    """The platform's owner, logged in at both servers."""

    def __init__(self, prefect: str, mlflow: str, token: str) -> None:
        self.prefect, self.mlflow, self.token = prefect, mlflow, token
        self.cookie = f"dynolab-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    def ask(self, method: str, url: str, **more: Any) -> requests.Response:
        login = {"Authorization": f"Bearer {self.token}"}
        headers = login | dict(more.pop("headers", {}))
        return requests.request(method, url, headers=headers, timeout=60, **more)

    def deployment(self) -> str:
        """A deployment that there is, or one made for this: its id."""
        listed = self.ask("POST", f"{self.prefect}/api/deployments/filter", json={}).json()
        if listed:
            return str(listed[0]["id"])
        flow = self.ask("POST", f"{self.prefect}/api/flows/", json={"name": "doors"}).json()
        made = {"name": "doors", "flow_id": flow["id"]}
        return str(self.ask("POST", f"{self.prefect}/api/deployments/", json=made).json()["id"])

    def keep_artifact(self) -> None:
        """Puts a file among MLflow's artifacts."""
        put = self.ask("PUT", artifact_url(self.mlflow), data=b"kept")
        assert put.ok, put.text

    def state(self) -> dict[str, object]:
        """What outsiders would change: counts of what there is, and a file's content."""
        count, clock = (
            self.ask("POST", f"{self.prefect}/api/flow_runs/count", json=filtered)
            for filtered in ({}, {"flow_runs": {"tags": {"all_": ["auto-scheduled"]}}})
        )
        flows = self.ask("POST", f"{self.prefect}/api/flows/count", json={})
        runs = self.ask(
            "POST", f"{self.mlflow}/api/2.0/mlflow/runs/search", json={"experiment_ids": ["0"]}
        )
        kept = self.ask("GET", artifact_url(self.mlflow))
        assert count.ok and clock.ok and flows.ok and runs.ok and kept.ok
        return {
            "flow runs that no schedule made": count.json() - clock.json(),
            "flows": flows.json(),
            "MLflow runs": len(runs.json().get("runs", ())),
            "artifact": kept.text,
        }

    def is_served(self) -> bool:
        """Whether both servers still answer their owner."""
        with suppress(requests.RequestException):
            return all(
                self.ask("GET", url).ok
                for url in (f"{self.prefect}/api/admin/version", f"{self.mlflow}/version")
            )
        return False


def artifact_url(mlflow: str) -> str:
    return f"{mlflow}/api/2.0/mlflow-artifacts/artifacts/{ARTIFACT}"


def target_of(owner: Owner, home: Path, processes: Iterable[int], explorer: str) -> Target:
    """What another user may know of the platform; `explorer`: host and port of that page."""
    return Target(
        prefect=owner.prefect.removeprefix("http://"),
        mlflow=owner.mlflow.removeprefix("http://"),
        explorer=explorer,
        deployment=owner.deployment(),
        artifact=ARTIFACT,
        home=str(home),
        processes=sorted(processes),
        cookie=owner.cookie,
    )


def tried_by_another_user(target: Target) -> Found:
    """Every way of `outsider`: by its owner's programs without a login, and, as root, by nobody."""
    own = {
        f"{name}, as the owner": got
        for name, got in _tried_by(target).items()
        if not re.match("home|processes", name)
    }
    return own | (_tried_by(target, *NOBODY) if os.geteuid() == 0 else {})


def readable(target: Target) -> list[tuple[str, str]]:
    """Each server, and a path that its owner can read."""
    return [
        (target.prefect, "/api/admin/version"),
        (target.mlflow, "/version"),
        (target.explorer, "/_dash-layout"),
    ]


def _tried_by(target: Target, *user: str) -> Found:
    ran = subprocess.run(
        [*user, PYTHON, "-I", "-c", Path(outsider.__file__).read_text()],
        input=json.dumps(asdict(target)),
        capture_output=True,
        text=True,
        timeout=300,
        cwd="/",
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


def tried_by_pages(owner: Owner, target: Target) -> Found:
    """What pages of other sites make their logged-in visitor's browser send, without a browser."""
    cookie = f"{owner.cookie}={owner.token}"
    sent = {
        "a foreign page": {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"},
        "a sandboxed page": {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        "another port's page": {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
        "a browser that tells the origin alone": {"Origin": EVIL},
        "an image": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        "another port's script": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"},
        "a frame": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "iframe"},
        "a rebound name": {"Host": "rebound.example"},
    }
    create = f"/api/deployments/{target.deployment}/create_flow_run"
    posted = {
        "a run": (target.prefect, create, {"job_variables": {"command": "id"}}),
        "a question": (target.explorer, outsider.CALLED, outsider.CALL),
    }
    found: Found = {}
    for name, headers in sent.items():
        given = {**headers, "Cookie": cookie}
        for server, path in readable(target):
            found[f"{name} reads {path}"] = outsider.tried(
                lambda s=server, p=path, h=given: outsider.ask(s, "GET", p, headers=h)  # type: ignore[misc]
            )
        if "Sec-Fetch-Dest" not in headers:
            for kind in ("", "text/plain"):
                typed = given | ({"Content-Type": kind} if kind else {})
                for what, (server, path, body) in posted.items():
                    text = json.dumps(body).encode()
                    found[f"{name} posts {what}, {kind or 'no type'}"] = outsider.tried(
                        lambda s=server, p=path, t=text, h=typed: post(s, p, t, h)  # type: ignore[misc]
                    )
    for path in outsider.WEBSOCKETS:
        for origin in (EVIL, "null", "http://127.0.0.1:1"):
            headers = f"Origin: {origin}\r\nCookie: {cookie}\r\n"
            found[f"{origin} opens {path}"] = outsider.tried(
                lambda p=path, h=headers: outsider.websocket(target.prefect, p, h)  # type: ignore[misc]
            )
    return found


def post(server: str, path: str, body: bytes, headers: Mapping[str, str]) -> str | None:
    """A body with these headers and no others, as a page's Blob has no Content-Type."""
    head = {"Host": server, "Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    port = int(server.rpartition(":")[2])
    said = outsider.talk(port, f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return said.decode(errors="replace") if re.match(rb"HTTP/1.1 [123]", said) else None


def tried_by_strangers(owner: Owner, ports: Iterable[int]) -> Found:
    """Whether strangers at a port keep the servers from their owner."""
    found: Found = {}
    for port in ports:
        for name, words in WORDS.items():
            with crowd(port, words):
                served = owner.is_served()
            found[f"port of {program_at(port)}: {name}"] = None if served else "the owner waits"
    return found


@contextmanager
def crowd(port: int, words: bytes, count: int = STRANGERS) -> Iterator[None]:
    """Connections to a port that say the same, stay, and hear nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            stranger.settimeout(2)
            with suppress(OSError):  # it hung up on us
                stranger.sendall(words)
        time.sleep(0.2)
        yield


def program_at(port: int) -> str:
    """What listens on a port, in a word or two."""
    for at in psutil.net_connections(kind="inet"):
        if at.status == psutil.CONN_LISTEN and at.laddr.port == port and at.pid:
            words = psutil.Process(at.pid).cmdline()
            known = ("tasks.runtime.servers.serve", "worker")
            name = next((word for word in known if any(word in part for part in words)), words[0])
            return name if name != "tasks.runtime.servers.serve" else words[words.index(name) + 1]
    return str(port)


def open_ways(found: Found) -> dict[str, str]:
    """The ways that are open."""
    return {name: got for name, got in found.items() if got is not None}
