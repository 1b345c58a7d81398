"""Token check of every request, and protection against requests of other sites' pages.

Prefect serves its UI's shell without a login and accepts any Host; MLflow's API knows no login. So
one ASGI middleware is in front of each server, for HTTP and WebSockets:

- **Host** must be one of the server's names. This refuses a page whose own name was rebound to this
  address (DNS rebinding).
- **Origin**, if present, must equal the requested address. A page of a website, or of another port
  of this machine, can send requests here from its visitor's browser; the browser adds the page's
  origin (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Origin).
- **Sec-Fetch-Site** shows the same for requests without an Origin, such as for images and scripts.
  Links from other sites may be followed; then the login decides.
- **Login:** the token as a Bearer, as the password of Basic authentication, or a session in a
  cookie, which ends and does not tell the token. A link with `?token=` begins a session and
  redirects to the same address without it. The cookie's name is a digest of the token, since a
  browser shares cookies over all ports of a host: one login serves both servers of a home, and
  other homes have cookies of their own.

A server proves whose home it serves to clients that ask at `PROOF_PATH`, before they send a login:
another program may have its port since.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.runtime.system.secret_files import PROOF_PATH, is_session, new_session, proof

LOGIN_DAYS = 30
_SECURITY_HEADERS = {
    b"content-security-policy": b"frame-ancestors 'self'; connect-src 'self' blob: data:",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
}
"""No other site may frame or load a response, or keep a reference to its window.

Pages send requests to this server alone: Prefect's call amplitude.com even if analytics are off.
"""


class Guard:
    """Passes allowed requests on to `application` and answers 401 or 403 to all others.

    **Arguments**

    - `token`: the secret that clients present.
    - `names`: allowed host names.
    - `public`: paths whose GET needs no login.
    - `remembered`: settings of the application's pages, which a browser puts into its
      `localStorage`, as JSON, before it shows the first of them.
    """

    def __init__(
        self,
        application: ASGIApp,
        token: str,
        names: Collection[str],
        public: Collection[str],
        remembered: Mapping[str, Any] | None = None,
    ) -> None:
        self._application, self._names, self._public = application, names, public
        self._token, self._remembered = token, remembered or {}
        self._cookie = f"dynolab-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, one WebSocket, or the application's start and shutdown."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        request = HTTPConnection(scope)
        # Until a browser has logged in, each connection ends with its answer.
        closing = _with_headers(send, _SECURITY_HEADERS | {b"connection": b"close"})
        if self._is_foreign(request):
            reason = "Only this server's own pages may send requests here, by its own names."
            answer = _refusal(403, reason)
        elif (token := request.query_params.get("token")) is not None and _is_navigation(request):
            answer = self._login(request, token)
        elif scope.get("method") == "GET" and scope["path"] == PROOF_PATH:
            answer = PlainTextResponse(self._proof(request))
        # A browser's first page stores the settings and loads itself again; its cookie says that
        # they are stored.
        elif (
            (logged_in := self._is_known(request))
            and self._remembered
            and _is_navigation(request)
            and f"{self._cookie}-remembers" not in request.cookies
        ):
            items = json.dumps({key: json.dumps(value) for key, value in self._remembered.items()})
            answer = HTMLResponse(
                f"<script>Object.assign(localStorage, {items}); location.reload()</script>"
            )
            answer.set_cookie(f"{self._cookie}-remembers", "1", max_age=LOGIN_DAYS * 86400)
        elif logged_in:
            await self._application(scope, receive, _with_headers(send, _SECURITY_HEADERS))
            return
        elif scope.get("method") == "GET" and scope["path"] in self._public:
            await self._application(scope, receive, closing)
            return
        else:
            reason = (
                "Open the link that `dynolab up` printed, or `dynolab explore`; programs must send "
                "the home's token."
            )
            answer = _refusal(401, reason)
        if scope["type"] == "websocket":  # closed before it is accepted, the server answers 403
            await send({"type": "websocket.close", "code": 1008})
        else:
            await answer(scope, receive, closing)

    def _is_foreign(self, request: HTTPConnection) -> bool:
        """Whether another site's page made the request."""
        hosts, sites = (request.headers.getlist(name) for name in ("host", "sec-fetch-site"))
        # A browser sends one Host. A page of this server has its address as origin, by either
        # scheme (a proxy in front may speak HTTPS); its requests come from the same origin, or
        # from none (typed). Links from other sites may be followed.
        own_origins = {f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts}
        return (
            len(hosts) != 1
            or hosts[0].partition(":")[0].lower() not in self._names
            or not own_origins.issuperset(request.headers.getlist("origin"))
            or (not set(sites) <= {"same-origin", "none"} and not _is_navigation(request))
        )

    def _proof(self, request: HTTPConnection) -> str:
        """Proof of the token for what the client asks, and for this server's port alone.

        Otherwise a program at one port could pass a client's question on to the server at another.
        """
        _, port = request.scope["server"]
        return proof(self._token, "server", f"{port} {request.query_params.get('ask', '')}")

    def _is_known(self, request: HTTPConnection) -> bool:
        session = request.cookies.get(self._cookie, "")
        return is_session(self._token, session) or any(map(self._is_token, _tokens(request)))

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())

    def _login(self, request: HTTPConnection, token: str) -> Response:
        if not self._is_token(token):
            return _refusal(401, "The link's token is not valid.")
        path = "/" + quote(request.scope["path"].lstrip("/"))  # `//name` leads to another server
        others = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        answer = RedirectResponse(f"{path}?{urlencode(others)}" if others else path, 303)
        seconds = LOGIN_DAYS * 86400
        session = new_session(self._token, seconds)
        answer.set_cookie(self._cookie, session, max_age=seconds, httponly=True, samesite="strict")
        answer.headers["cache-control"] = "no-store"
        return answer


def _tokens(request: HTTPConnection) -> Iterator[str]:
    """The tokens that the request presents."""
    for value in request.headers.getlist("authorization"):
        scheme, _, text = value.partition(" ")
        if scheme.lower() == "bearer":
            yield text.strip()
        elif scheme.lower() == "basic":
            with suppress(ValueError):
                yield base64.b64decode(text, validate=True).decode().partition(":")[2]


def _is_navigation(request: HTTPConnection) -> bool:
    """Whether a browser opens a top-level page, from a link or a typed address."""
    if request.scope.get("method") != "GET":
        return False
    target = request.headers.getlist("sec-fetch-dest")
    if target:  # browsers send it to loopback addresses and over HTTPS
        return target == ["document"]
    return any("text/html" in value for value in request.headers.getlist("accept"))


def _refusal(status: int, reason: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return PlainTextResponse(reason, status, headers)


def _with_headers(send: Send, headers: dict[bytes, bytes]) -> Send:
    """Wrap `send`: these headers replace any others of the same names."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            others = [pair for pair in message.get("headers", ()) if pair[0].lower() not in headers]
            message["headers"] = [*others, *headers.items()]
        await send(message)

    return send_with_headers
