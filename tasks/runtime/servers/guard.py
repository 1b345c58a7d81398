"""Token check of every request, and protection against requests of other sites' pages.

One ASGI middleware before the whole of each server, for HTTP and WebSockets alike:

- **Host** has to be a name that the server goes by: a page whose own name was rebound to this
  address (DNS rebinding) is refused.
- **Origin**, where there is one, has to be the address that was asked. A page of a website, or of
  another port of this machine, can send requests here from its visitor's browser; the browser says
  whose page it is (https://developer.mozilla.org/docs/Web/HTTP/Reference/Headers/Origin).
- **Sec-Fetch-Site** tells the same of requests without an Origin, as an image's or a script's.
  A link from elsewhere may be followed, and then the login decides.
- **Login:** the token as a Bearer, as the password of Basic authentication, or in a cookie. A link
  with `?token=` sets the cookie and leads on to the same address without it. The cookie is called
  by a digest of the token, since a browser shares cookies over all ports of a host: one login
  serves both servers of a home, and other homes have cookies of their own.
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
"""No other site may frame, load or keep hold of what is answered."""

_CLOSE = (b"connection", b"close")  # who is not logged in keeps no connection
_PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<h1>{title}</h1><p>{reason}</p><p><a href="">Try again</a></p>
"""


class Guard:
    """Passes on to `application` what may come in, and answers 401 or 403 otherwise.

    **Arguments**

    - `token`: the secret that clients show.
    - `names`: host names by which clients may ask.
    - `public`: paths whose GET needs no login.
    """

    def __init__(
        self, application: Application, token: str, names: Collection[str], public: Collection[str]
    ) -> None:
        self._application, self._names, self._public = application, names, public
        self._token = token.encode()
        self._cookie = f"dynolab-{hashlib.sha256(self._token).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, one WebSocket, or the application's own start and end."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
            return
        request = _Request(scope)
        if self._is_foreign(request):
            reason = "Only this server's own pages may ask it, by its own names."
            await _refuse(request, send, HTTPStatus.FORBIDDEN, reason)
        elif (given := request.token) is not None and request.is_navigation:
            await self._log_in(request, given, send)
        elif self._is_logged_in(request):
            await self._application(scope, receive, _with_headers(send, _SECURITY_HEADERS))
        elif request.method == "GET" and request.path in self._public:
            closing = [*_SECURITY_HEADERS, _CLOSE]
            await self._application(scope, receive, _with_headers(send, closing))
        else:
            reason = "Open the link that `dynolab up` has printed; clients show the home's token."
            await _refuse(request, send, HTTPStatus.UNAUTHORIZED, reason)

    def _is_foreign(self, request: _Request) -> bool:
        """Whether a request is of another site's making."""
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

    async def _log_in(self, request: _Request, given: str, send: Send) -> None:
        if not self._is_token(given):
            await _refuse(request, send, HTTPStatus.UNAUTHORIZED, "The link's token is not valid.")
            return
        cookie = (
            f"{self._cookie}={given}; Path=/; Max-Age={LOGIN_DAYS * 86400}; HttpOnly;"
            " SameSite=Strict"
        )
        location = (b"location", request.address_without_token.encode())
        headers = [location, (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
        await _respond(send, HTTPStatus.SEE_OTHER, headers, b"")


class _Request:
    """What the guard looks at of a request."""

    def __init__(self, scope: Scope) -> None:
        self.is_websocket = scope["type"] == "websocket"
        self.method = str(scope.get("method", ""))  # a WebSocket has none
        self.path = str(scope["path"])
        self._headers = scope["headers"]
        self._query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)

    def all(self, name: str) -> list[str]:
        """The values of a header, which may be there more than once."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self._headers if key == wanted]

    @property
    def is_navigation(self) -> bool:
        """Whether a browser asks for a page to show at its top, after a link or an address."""
        if self.method != "GET":
            return False
        target = self.all("sec-fetch-dest")
        if target:  # browsers tell it to addresses of this machine and by HTTPS
            return target == ["document"]
        return any("text/html" in value for value in self.all("accept"))

    @property
    def token(self) -> str | None:
        """The token in the address, if there is one."""
        return next((value for name, value in self._query if name == "token"), None)

    @property
    def address_without_token(self) -> str:
        """The address on this server; what stands after `#` the browser itself carries over."""
        path = "/" + quote(self.path.lstrip("/"))  # `//name` would lead to another server
        query = urlencode([(name, value) for name, value in self._query if name != "token"])
        return f"{path}?{query}" if query else path

    def credentials(self, cookie: str) -> Iterator[str]:
        """The secrets that the request shows."""
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
    """`host:port` of an origin; empty where it has none (`null`, `file://`)."""
    with suppress(ValueError):
        return urlsplit(origin).netloc
    return ""


def _with_headers(send: Send, headers: list[tuple[bytes, bytes]]) -> Send:
    """Sends responses with these headers in place of any others of the same names."""
    ours = {name for name, _ in headers}

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", ()) if pair[0].lower() not in ours]
            message["headers"] = [*kept, *headers]
        await send(message)

    return send_with_headers


async def _refuse(request: _Request, send: Send, status: HTTPStatus, reason: str) -> None:
    if request.is_websocket:  # before it is accepted, so that the server answers 403
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
