"""Ways of pages of other sites, in a real Chromium whose user is logged in at the servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext, Error, Page, sync_playwright

from tests.browsing import CHROMIUM
from tests.platform.doors import CALL, CALLED, EVIL, Found, Owner

REBOUND = "rebound.example"
PAGE, REBOUND_PAGE = (
    Path(__file__).with_name(name).read_text() for name in ("other_site.js", "rebound_name.js")
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    f"--host-resolver-rules=MAP {urlsplit(EVIL).hostname} 127.0.0.1, MAP {REBOUND} 127.0.0.1",
]
SETTLE_MS = 3000


class BlankPage(BaseHTTPRequestHandler):
    """A page of another site, into which its ways are put."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title><body></body>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def other_site() -> Iterator[int]:
    """Serves pages that are not ours; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def browser(folder: Path) -> Iterator[BrowserContext]:
    """A Chromium that keeps its cookies in a folder."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=CHROMIUM, headless=True, args=FLAGS
        )
        try:
            yield context
        finally:
            context.close()


def tried_by_pages(owner: Owner, folder: Path) -> Found:
    """The ways of pages of another name, of another port, and of a name rebound to the server."""
    servers = {"Prefect": owner.prefect, "MLflow": owner.mlflow, "Explorer": owner.explorer}
    start = owner.start_address()
    given = [*servers.values(), start, owner.artifact]
    call = [CALLED, json.dumps(CALL)]
    outcomes: Found = {}
    with other_site() as port, browser(folder) as context:
        page = context.new_page()
        for server in (owner.prefect, owner.mlflow):
            page.goto(f"{server}/?token={owner.token}")
        for site in (f"{EVIL}:{port}", f"http://127.0.0.1:{port}"):
            page.goto(site)
            before = owner.state()
            answers = page.evaluate(PAGE, [*given, *call])
            page.wait_for_timeout(SETTLE_MS)
            for name, server in servers.items():
                answers[f"frame around {name}"] = _framed(page, server)
            after = owner.state()
            answers["all ways together change something"] = (
                None if after == before else f"{before} became {after}"
            )
            where = "of another name" if site.startswith(EVIL) else "of another port"
            outcomes |= {f"page {where}: {way}": got for way, got in answers.items()}
        for name, server in servers.items():
            address = server.replace("127.0.0.1", REBOUND)
            answer = page.goto(f"{address}/api/admin/version")
            assert answer is not None
            outcomes[f"rebound name: page of {name}"] = answer.text() if answer.ok else None
            answers = page.evaluate(REBOUND_PAGE, [urlsplit(start).path, *call])
            outcomes |= {f"rebound name, {name}: {way}": got for way, got in answers.items()}
    return outcomes


def _framed(page: Page, server: str) -> str | None:
    """What a page's frame shows of a server, where it shows anything."""
    for frame in page.frames[1:]:
        try:
            if frame.url.startswith(server) and (text := frame.inner_text("body", timeout=2000)):
                return text if "own pages" not in text else None
        except Error:  # the browser shows nothing
            continue
    return None
