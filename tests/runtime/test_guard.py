"""What the servers' guard lets in: nothing without the token, nothing of another site's making."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from dynolab.errors import ConfigError
from tasks.runtime.servers.guard import LOGIN_DAYS, Guard
from tasks.runtime.servers.serve import retrying
from tasks.runtime.system.secret_files import PROOF_PATH, check_token, proof
from tests.platform.doors import sessions_of_others

TOKEN = "0123456789abcdef" * 2
HOST = "127.0.0.1:4200"
BEARER = {"authorization": f"Bearer {TOKEN}"}
PAGE = {"accept": "text/html,*/*", "sec-fetch-dest": "document", "sec-fetch-site": "none"}
Message = MutableMapping[str, Any]


async def application(scope: Message, receive: Any, send: Any) -> None:
    """Answers everything."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    headers = [(b"x-frame-options", b"DENY"), (b"Referrer-Policy", b"unsafe-url")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"secret"})


class Answer(NamedTuple):
    """What came back for one request."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    is_accepted_websocket: bool


def ask(
    path: str = "/api/flows",
    *more: tuple[str, str],
    kind: str = "http",
    method: str = "GET",
    query: str = "",
    remembered: Mapping[str, Any] | None = None,
    **headers: str,
) -> Answer:
    given = {"host": HOST, **{name.replace("_", "-"): value for name, value in headers.items()}}
    pairs = [*given.items(), *more]
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "server": ("127.0.0.1", 4200),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
    }
    if kind == "websocket":
        del scope["method"]
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is read of what is refused")

    guard = Guard(application, TOKEN, ("127.0.0.1", "localhost"), ("/api/health",), remembered)
    asyncio.run(guard(scope, receive, send))
    told = messages[0].get("headers", [])
    headers = {name.decode().lower(): value.decode() for name, value in told}
    assert len(headers) == len(told), "each header once"
    body = b"".join(message.get("body", b"") for message in messages)
    accepted = [message["type"] for message in messages] == ["websocket.accept"]
    return Answer(messages[0].get("status"), headers, body, accepted)


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


def cookie() -> str:
    """What a browser sends that has followed the link."""
    return ask("/", query=f"token={TOKEN}", **PAGE).headers["set-cookie"].partition(";")[0]


@pytest.mark.parametrize(
    "authorization",
    [
        f"Bearer {TOKEN}",
        f"bearer {TOKEN}",
        basic("", TOKEN),
        basic("dynolab", TOKEN),
    ],
)
def test_clients_with_the_token_come_in(authorization: str) -> None:
    assert ask(authorization=authorization).status == 200
    assert ask(kind="websocket", authorization=authorization).is_accepted_websocket


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}0",
        f"Token {TOKEN}",
        TOKEN,
        "Basic",
        "Basic !",
        "Basic /w==",
        basic("", ""),
        basic(TOKEN, ""),
        "Bearer \xe9\xff",
    ],
)
def test_nobody_comes_in_without_the_token(authorization: str) -> None:
    for headers in ({}, {"authorization": authorization}, {"cookie": f"x={TOKEN}; {cookie()}0"}):
        assert {ask(method=method, **headers).status for method in ("GET", "POST")} == {401}
        assert not ask(kind="websocket", **headers).is_accepted_websocket


def test_health_alone_is_told_to_everybody() -> None:
    assert [ask("/api/health", method=each).status for each in ("GET", "POST")] == [200, 401]
    for path in ("/api/health/", "//api/health", "/api/health/../flows", "/API/health"):
        assert ask(path).status == 401
    assert not ask("/api/health", kind="websocket").is_accepted_websocket


def test_the_link_sets_a_cookie_and_leads_to_the_address_without_the_token() -> None:
    answer = ask("/runs/a b", query=f"a=1%262&token={TOKEN}&b=", **PAGE)
    assert (answer.status, answer.headers["location"]) == (303, "/runs/a%20b?a=1%262&b=")
    assert answer.headers["set-cookie"].endswith(
        "; HttpOnly; Max-Age=2592000; Path=/; SameSite=strict"
    )
    kept = ask("/", remembered={"kind": "training"}, cookie=cookie(), **PAGE)
    assert "set-cookie" in kept.headers and b"kind" in kept.body
    assert ask(cookie=f"other=1; {cookie()}").status == 200
    assert ask(kind="websocket", cookie=cookie(), origin=f"http://{HOST}").is_accepted_websocket


def test_a_browsers_login_is_no_token_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    value = cookie()
    assert TOKEN not in value and value != cookie(), "each login is one of its own"
    assert ask(cookie=value).status == 200
    later = time.time() + LOGIN_DAYS * 86400
    monkeypatch.setattr(time, "time", lambda: later - 5)
    assert ask(cookie=value).status == 200
    monkeypatch.setattr(time, "time", lambda: later + 5)
    assert ask(cookie=value).status == 401
    name, _, session = value.partition("=")
    for wrong in sessions_of_others(TOKEN).values():
        assert ask(cookie=f"{name}={wrong}").status == 401
    assert ask(authorization=f"Bearer {session}").status == 401


def test_a_server_proves_whose_it_is_to_whoever_asks_for_its_own_port_alone() -> None:
    answers = {
        question: ask(PROOF_PATH, query=f"ask={question}").body.decode() for question in ("a", "b")
    }
    assert answers == {name: proof(TOKEN, "server", f"4200 {name}") for name in ("a", "b")}
    assert ask(PROOF_PATH, method="POST").status == 401
    assert ask(PROOF_PATH, host="evil.example").status == 403


def test_the_link_leads_to_no_other_server() -> None:
    for path in ("//evil.example/", "/\\evil.example/", "///evil.example"):
        location = ask(path, query=f"token={TOKEN}", **PAGE).headers["location"]
        assert location.startswith("/") and location[1] not in "/\\"


def test_a_token_in_an_address_logs_nobody_in_by_itself() -> None:
    refused = ask("/", query="token=guess", **PAGE)
    assert refused.status == 401 and "set-cookie" not in refused.headers
    assert ask(query=f"token={TOKEN}", accept="application/json").status == 401
    assert ask(query=f"token={TOKEN}", method="POST", **PAGE).status == 401
    assert not ask(query=f"token={TOKEN}", kind="websocket").is_accepted_websocket


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4200",
        "127.0.0.1.evil.example",
        "",
        "[::1]:4200",
        "@127.0.0.1",
    ],
)
def test_a_name_that_was_rebound_to_this_address_is_refused(host: str) -> None:
    for path in ("/api/flows", "/api/health"):
        assert ask(path, **(BEARER | {"host": host})).status == 403
    assert ask("/api/flows", ("host", host), **BEARER).status == 403, "beside the right one"
    assert not ask(kind="websocket", **(BEARER | {"host": host})).is_accepted_websocket


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1",
        "http://127.0.0.1:9999",
        "http://localhost:4200",
        "http://evil.example:4200",
        "http://[",
        "file://",
    ],
)
def test_pages_of_other_sites_are_refused_though_their_visitor_is_logged_in(origin: str) -> None:
    for login in (BEARER, {"cookie": cookie()}):
        for method in ("GET", "POST", "OPTIONS"):
            assert ask(method=method, origin=origin, **login).status == 403
        assert not ask(kind="websocket", origin=origin, **login).is_accepted_websocket
        both = ("origin", f"http://{HOST}")
        assert ask("/api/flows", both, origin=origin, **login).status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_other_sites_pages_embed_is_refused(site: str) -> None:
    headers = {"cookie": cookie(), "sec_fetch_site": site}
    for target in ("image", "script", "iframe", "style", "empty", "object"):
        assert ask(sec_fetch_dest=target, accept="text/html", **headers).status == 403
    assert ask(method="POST", sec_fetch_dest="document", **headers).status == 403
    assert ask(sec_fetch_dest="document", **headers).status == 200, "a link may be followed"


def test_no_other_site_may_frame_or_load_what_is_answered() -> None:
    for answer in (ask(**BEARER), ask()):
        assert answer.headers.items() >= {
            ("content-security-policy", "frame-ancestors 'self'; connect-src 'self' blob: data:"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
        }
    assert ask(**BEARER).headers["x-frame-options"] == "DENY"


def test_a_browser_without_login_is_told_what_to_do() -> None:
    answer = ask("/", **PAGE)
    assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert b"link that `dynolab up` printed" in answer.body
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("text", ["", "short", "x" * 31, "0" * 31 + ";", "0" * 32 + "\n", "é" * 32])
def test_a_token_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError, match=r"DYNOLAB_TOKEN = '…': give at least 32") as error:
        check_token(text)
    assert not text or text not in str(error.value)


def test_a_request_that_loses_to_sqlites_other_writer_is_repeated_whole() -> None:
    sent: list[bytes] = []

    async def create(request: Request) -> Response:
        sent.append(await request.body())
        if len(sent) < 3:
            raise OSError("database is locked")
        return Response(status_code=201)

    busy = Starlette(
        routes=[Route("/", create, methods=["POST"])],
        exception_handlers={Exception: lambda request, error: Response(status_code=503)},
    )
    assert TestClient(retrying(busy)).post("/", content=b"a run").status_code == 201
    assert sent == [b"a run"] * 3
