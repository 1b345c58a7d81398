"""Runs one server process, Prefect or MLflow, on an inherited socket or an address.

    python -m tasks.runtime.servers.serve <name> <folder> <descriptor or host:port> [standing]

Every request passes the guard (`tasks.runtime.servers.guard`) first, whose token is DYNOLAB_TOKEN
in the environment.

`name` is `prefect`, `mlflow`, or `prefect-api`: Prefect without its background services, which
`prefect server services start` then runs.

Each application runs under uvicorn in this one process. CPU seconds until it answers, with a new
database / an existing database and the libraries' bytecode cached (without the cache, under
PYTHONDONTWRITEBYTECODE, compiling adds 5 s to each):

- MLflow: 5.3 / 4.9 with `mlflow server --workers 1`, whose command line imports MLflow to start a
  second process that imports it again; 2.7 / 2.0 here.
- Prefect: 8.1 / 3.9 with `prefect server start`; 2.5 / 2.5 here, where a new home begins with a
  finished database (`new_homes`; migrations and block types take 4 s) and block types are not
  compared, which imports every installed integration. Switching the background services off saves
  nothing at start, and idle they use 2 % of a core: all stay on.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.runtime.servers import new_homes
from tasks.runtime.servers.form_checks import check_forms
from tasks.runtime.servers.guard import Guard
from tasks.runtime.servers.run_names import name_runs
from tasks.runtime.system.processes import listening_socket
from tasks.runtime.system.secret_files import TOKEN, check_token, own_folder
from tasks.runtime.track.mlflow_pages import EXPERIMENT_TAGS, SUMMARY

_HOSTS = ("127.0.0.1", "localhost")
"""Host names that a browser on this machine, or behind a forwarded port, uses."""

_PUBLIC = {
    "prefect": ("/api/health", "/api/ready", "/v2/ico/site.webmanifest"),
    "mlflow": ("/health",),
}
"""Paths for health checks, and Prefect's name and icons, for which browsers send no login.

They reveal nothing but that the server is running.
"""

_REMEMBERED = {
    "mlflow": {
        "mlflow.workflowType_v1": "machine_learning",
        "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True,
    }
}
"""What a browser keeps for a server's pages from the first one on.

MLflow's pages then open on runs and their curves, not on traces of language models' calls.
"""


_RETRY_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)

_ANALYTICS_KEY = b"c97dd2acbf306ab7bf54aca0aeb7ffa1"
"""Prefect's key at amplitude.com in its pages' script, which sends nothing without a key.

With the key, each page asks there for its settings, although the server's analytics are off.
"""


_SHOWS_ALL, _SHOWS_DIFFERENT = b"onlyShowParamDiff:!1", b"onlyShowParamDiff:!0"
"""How MLflow's comparison of runs begins, and how ours does: a switch on the page turns it."""


def allowed_hosts() -> tuple[str, ...]:
    """`_HOSTS` and the comma-separated names in DYNOLAB_SERVER_NAMES."""
    return (*_HOSTS, *filter(None, os.environ.get("DYNOLAB_SERVER_NAMES", "").split(",")))


def prefect_application(folder: Path, port: int, standing: bool, *, api_only: bool = False) -> Any:
    """Prefect's API, UI and background services; `folder` is its PREFECT_HOME.

    `api_only`: another process runs the services. `standing`: register block types, which only the
    UI's block forms need.
    """
    os.environ.pop("PREFECT_API_URL", None)  # it would point the UI to another server
    os.environ.pop("PREFECT_SERVER_API_AUTH_STRING", None)  # the guard checks the login
    database = os.environ.get("DYNOLAB_PREFECT_DATABASE")
    if not database:
        new_homes.begin(folder)
    # Prefect writes this file once it has stored its block types. Where it is, they are not asked
    # for: to compare them, Prefect would import every installed integration, Kubernetes' too.
    block_types = folder / new_homes.block_types()
    registers = standing and (bool(database) or not block_types.exists())
    os.environ |= {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": (
            database or f"sqlite+aiosqlite:///{folder}/{new_homes.DATABASE}"
        ),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_API_URL": "/api",  # relative to the address that the browser uses
        "PREFECT_UI_URL": f"http://127.0.0.1:{port}/v2",  # in alerts
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "",  # none; by default all
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Changing one schedule of a deployment deletes the coming runs of all, until the next loop.
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10",  # by default 60
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        # With leases in memory, slots leased when a server ends would never be released.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": os.environ.get(
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE",
            "prefect.server.concurrency.lease_storage.filesystem",
        ),
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": str(registers),
        "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": str(registers),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(block_types),
    }
    import prefect
    from prefect.server.api.server import create_app
    from prefect.server.schemas.actions import DeploymentScheduleUpdate

    # What a request leaves out keeps its value. Without this, pausing or resuming a schedule would
    # set its parameters to the class's default, {}.
    dump_all = DeploymentScheduleUpdate.model_dump
    DeploymentScheduleUpdate.model_dump = lambda self, **options: {  # type: ignore[method-assign]
        name: value
        for name, value in dump_all(self, **options).items()
        if name in self.model_fields_set
    }
    check_forms(folder.parent)
    name_runs()
    sort_artifacts()
    application = create_app(final=True, webserver_only=api_only)
    # Prefect copies its pages there where the library's folder is read only.
    copied = os.environ.get("PREFECT_UI_STATIC_DIRECTORY")
    pages = Path(copied, "v2") if copied else Path(prefect.__ui_v2_static_subpath__)
    # Address → file that is served there in place of Prefect's own answer.
    served_files = {
        **{f"/v2/assets/{script.name}": script for script in pages.glob("assets/index-*.js")},
        # Icons, which the pages ask for at addresses where Prefect has none.
        **{f"/{icon.name}": icon for icon in pages.glob("ico/*.ico")},
    }
    for address, file in served_files.items():
        kind, _ = guess_type(file.name)
        answer = Response(file.read_bytes().replace(_ANALYTICS_KEY, b""), media_type=kind)
        application.router.routes.insert(0, Route(address, answer))
    return retrying(application)


def sort_artifacts() -> None:
    """Lists a run's artifacts by name, the summary first; their ids, as pages ask, tell nothing."""
    from prefect.server.database.dependencies import provide_database_interface
    from prefect.server.schemas.sorting import ArtifactSort

    sort = ArtifactSort.as_sql_sort

    def by_name(self: ArtifactSort) -> Any:
        if self is not ArtifactSort.ID_DESC:
            return sort(self)
        key = provide_database_interface().Artifact.key
        return [key.startswith(SUMMARY).desc(), key]

    ArtifactSort.as_sql_sort = by_name  # type: ignore[method-assign]


def retrying(application: ASGIApp) -> ASGIApp:
    """Repeats requests that Prefect answers with 503: SQLite had another writer, nothing changed.

    Prefect's client repeats them seconds later; its pages show an error.
    """

    async def repeated(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            await application(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        # The application's own `receive` and `send`: they give it the body anew for each attempt,
        # and keep its answer until it is clear whether it is the last.
        unread, answer = list[Message](), list[Message]()

        async def read() -> Message:
            return unread.pop() if unread else await receive()

        async def collect(part: Message) -> None:
            answer.append(part)

        for seconds in _RETRY_SECONDS:
            unread[:], answer[:] = [{"type": "http.request", "body": body}], []
            with suppress(Exception):  # raised once more after Prefect has answered and logged it
                await application(dict(scope), read, collect)  # it writes into its scope
            if not answer or answer[0]["status"] != HTTPStatus.SERVICE_UNAVAILABLE:
                break
            await asyncio.sleep(seconds)
        for part in answer:
            await send(part)

    return repeated


def mlflow_application(folder: Path, port: int, standing: bool) -> Any:
    """MLflow's API and UI, with its tables created; the server serves artifacts."""
    os.environ |= {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{host},{host}:*" for host in allowed_hosts()),
    }
    from mlflow.server import constants

    database = os.environ.get("DYNOLAB_MLFLOW_DATABASE") or f"sqlite:///{folder}/mlflow.db"
    artifacts = os.environ.get("DYNOLAB_MLFLOW_ARTIFACTS") or str(folder / "artifacts")
    artifact_root = "mlflow-artifacts:/"
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: artifact_root,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    from mlflow.entities import ExperimentTag
    from mlflow.server.handlers import _get_tracking_store, initialize_backend_stores

    initialize_backend_stores(database, database, artifact_root)
    store = _get_tracking_store()
    if store.get_experiment_by_name("dynolab") is None:  # the default project
        tags = [ExperimentTag(*tag) for tag in EXPERIMENT_TAGS.items()]
        store.create_experiment("dynolab", artifact_location=None, tags=tags)
    from mlflow.server.fastapi_app import app

    # Its pages ask who is logged in, also without its own login; a 404 is an error in the console.
    app.router.routes.insert(0, Route("/ajax-api/2.0/mlflow/users/current", JSONResponse({})))
    # A comparison begins with the parameters that differ.
    folder_of_pages = Path(constants.__file__).parent / "js" / "build"
    for script in folder_of_pages.glob("static/js/*.chunk.js"):
        code = script.read_bytes()
        if _SHOWS_ALL in code:
            answer = Response(
                code.replace(_SHOWS_ALL, _SHOWS_DIFFERENT), media_type="text/javascript"
            )
            address = f"/static-files/{script.relative_to(folder_of_pages)}"
            app.router.routes.insert(0, Route(address, answer))
    return app


_APPLICATIONS: dict[str, Callable[[Path, int, bool], Any]] = {
    "prefect": prefect_application,
    "prefect-api": partial(prefect_application, api_only=True),
    "mlflow": mlflow_application,
}


@contextmanager
def _start_lock(folder: Path) -> Iterator[None]:
    """Lock against another server on the same new database, which would create its tables, too."""
    with (folder / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(name: str, folder: Path, where: str, standing: bool) -> None:
    """Serve until SIGTERM or SIGINT.

    **Arguments:** `where`: number of an inherited socket, or `host:port`.
    """
    gc.disable()  # imports create millions of permanent objects: collection would cost 8 %
    import uvicorn

    # `until_started` is below: uvicorn calls `startup` within its block.
    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            until_started.close()
            gc.freeze()
            gc.enable()

    token = check_token(os.environ.pop(TOKEN, ""))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # soft: often 1024
    own_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    host, colon, port = where.rpartition(":")
    listener = listening_socket(int(port), host) if colon else socket.socket(fileno=int(where))
    with ExitStack() as until_started:
        until_started.enter_context(_start_lock(folder))
        application = _APPLICATIONS[name](folder, listener.getsockname()[1], standing)
        public = _PUBLIC[name.removesuffix("-api")]
        Server(
            uvicorn.Config(
                Guard(application, token, allowed_hosts(), public, _REMEMBERED.get(name, {})),
                access_log=False,
                timeout_graceful_shutdown=3,
            )
        ).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["standing"])
