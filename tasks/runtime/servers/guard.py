"""Token check of every request, and protection against requests of other sites' pages.

One ASGI middleware in front of each server, for HTTP and WebSockets:

- **Host** must be one of the server's names. This refuses a page whose own name was rebound to this
  address (DNS rebinding).
- **Origin**, if present, must equal the requested address. A page of a website, or of another port
  of this machine, can send requests here from its visitor's browser; the browser adds the page's
  origin (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Origin).
- **Sec-Fetch-Site** shows the same for requests without an Origin, such as for images and scripts.
  Links from other sites may be followed; then the login decides.
- **Login:** the token as a Bearer, as the password of Basic authentication, or in a cookie. A link
  with `?token=` sets the cookie and redirects to the same address without it. The cookie's name is
  a digest of the token, since a browser shares cookies over all ports of a host: one login serves
  both servers of a home, and other homes have cookies of their own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGIN_DAYS = 30
_POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1
_SECURITY_HEADERS = [
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
]
"""No other site may frame or load a response, or keep a reference to its window."""

_CLOSE = (b"connection", b"close")  # for clients that are not logged in
_PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p>{reason}</p><p><a href="">Try again</a></p>
"""


class Guard:
    """Passes allowed requests on to `application` and answers 401 or 403 to all others.

    **Arguments**

    - `token`: the secret that clients present.
    - `names`: allowed host names.
    - `public`: paths whose GET needs no login.
    """

    def __init__(
        self, application: Application, token: str, names: Collection[str], public: Collection[str]
    ) -> None:
        self._application, self._names, self._public = application, names, public
        self._token = token.encode()
        self._cookie = f"dynolab-{hashlib.sha256(self._token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, one WebSocket, or the application's start and shutdown."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        request = _Request(scope)
        if self._is_foreign(request):
            reason = "Only this server's own pages may send requests here, by its own names."
            await _refuse(request, send, HTTPStatus.FORBIDDEN, reason)
        elif (token := request.token) is not None and request.is_navigation:
            await self._log_in(request, token, send)
        elif self._is_logged_in(request):
            await self._application(scope, receive, _with_headers(send, _SECURITY_HEADERS))
        elif request.method == "GET" and request.path in self._public:
            closing = [*_SECURITY_HEADERS, _CLOSE]
            await self._application(scope, receive, _with_headers(send, closing))
        else:
            reason = (
                "Open the link that `dynolab up` printed, or `dynolab explore`; programs must send "
                "the home's token."
            )
            await _refuse(request, send, HTTPStatus.UNAUTHORIZED, reason)

    def _is_foreign(self, request: _Request) -> bool:
        """Whether another site's page made the request."""
        hosts, sites = request.all("host"), set(request.all("sec-fetch-site"))
        return (
            len(hosts) != 1
            or hosts[0].partition(":")[0].lower() not in self._names
            or any(_address(origin) != hosts[0] for origin in request.all("origin"))
            or (bool(sites - {"same-origin", "none"}) and not request.is_navigation)
        )

    def _is_logged_in(self, request: _Request) -> bool:
        return any(self._is_token(text) for text in request.credentials(self._cookie))

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token)

    async def _log_in(self, request: _Request, token: str, send: Send) -> None:
        if not self._is_token(token):
            await _refuse(request, send, HTTPStatus.UNAUTHORIZED, "The link's token is not valid.")
            return
        cookie = (
            f"{self._cookie}={token}; Path=/; Max-Age={LOGIN_DAYS * 86400}; HttpOnly;"
            " SameSite=Strict"
        )
        location = (b"location", request.address_without_token.encode())
        headers = [location, (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await _respond(send, HTTPStatus.SEE_OTHER, headers, b"")


class _Request:
    """The parts of a request that the guard checks."""

    def __init__(self, scope: Scope) -> None:
        self.is_websocket = scope["type"] == "websocket"
        self.method = str(scope.get("method", ""))  # a WebSocket has none
        self.path = str(scope["path"])
        self._headers = scope["headers"]
        self._query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)

    def all(self, name: str) -> list[str]:
        """All values of a header, which may be repeated."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self._headers if key == wanted]

    @property
    def is_navigation(self) -> bool:
        """Whether a browser opens a top-level page, from a link or a typed address."""
        if self.method != "GET":
            return False
        target = self.all("sec-fetch-dest")
        if target:  # browsers send it to loopback addresses and over HTTPS
            return target == ["document"]
        return any("text/html" in value for value in self.all("accept"))

    @property
    def token(self) -> str | None:
        """The token in the query, if there is one."""
        return next((value for name, value in self._query if name == "token"), None)

    @property
    def address_without_token(self) -> str:
        """Path and query without the token; the browser itself keeps the `#` fragment."""
        path = "/" + quote(self.path.lstrip("/"))  # `//name` would lead to another server
        query = urlencode([(name, value) for name, value in self._query if name != "token"])
        return f"{path}?{query}" if query else path

    def credentials(self, cookie: str) -> Iterator[str]:
        """The secrets that the request presents."""
        for value in self.all("authorization"):
            scheme, _, text = value.partition(" ")
            if scheme.lower() == "bearer":
                yield text.strip()
            elif scheme.lower() == "basic":
                with suppress(ValueError):
                    yield base64.b64decode(text, validate=True).decode().partition(":")[2]
        for value in self.all("cookie"):
            for pair in value.split(";"):
                name, _, text = pair.strip().partition("=")
                if name == cookie:
                    yield text


def _address(origin: str) -> str:
    """`host:port` of an origin; empty for origins without one (`null`, `file://`)."""
    with suppress(ValueError):
        return urlsplit(origin).netloc
    return ""


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """Wrap `send`: these headers replace any others of the same names."""
    ours = {name for name, _ in headers}

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message["headers"] = [*kept, *headers]
        await send(message)

    return send_with_headers


async def _refuse(request: _Request, send: Send, status: HTTPStatus, reason: str) -> None:
    if request.is_websocket:  # closed before it is accepted, the server answers 403
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": reason})
        return
    if request.is_navigation:
        kind, text = "text/html", _PAGE.format(title=status.phrase, reason=html.escape(reason))
    else:
        kind, text = "application/json", json.dumps({"detail": reason})
    content_type = f"{kind}; charset=utf-8".encode()
    headers = [(b"content-type", content_type), (b"cache-control", b"no-store")]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await _respond(send, status, headers, text.encode())


async def _respond(
    send: Send, status: HTTPStatus, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    length = (b"content-length", str(len(body)).encode())
    headers = [*headers, length, _CLOSE, *_SECURITY_HEADERS]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
