"""Tries every way into what `make up` and `explore` start, in both profiles.

    python -m tests.benchmarks.doors [--profile local|full]

The ways are those of another user of the machine, of strangers at every port that is listened on,
and of pages of other sites in a real Chromium whose user is logged in. Prints one JSON object on
its last line:

- `ways_tried`, and of them `ways_open`; `open`: what each open way got, where there are any.
- `ways_tried_by_user`, `ways_tried_by_strangers`, `ways_tried_by_pages`: their kinds.
- `own_browser_works`: by profile, whether the links, and then the cookie alone in a browser that
  was closed in between, show Prefect's deployments and MLflow's experiments.

It exits non-zero where a way is open, where fewer than 20 were tried, or where the owner's own
browser does not get in.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import BrowserContext, Error, Page, sync_playwright

from flows.up import PROFILES
from tests.browsing import CHROMIUM
from tests.flows.lab import Lab, until
from tests.platform import doors
from tests.platform.conftest import Platform, platform_of
from tests.platform.doors import EVIL, Found, Owner
from tests.platform.explorer_page import explorer_of
from tests.platform.outsider import CALL, CALLED, Target

REBOUND = "rebound.example"
PAGE = Path(__file__).with_name("doors_page.js")
REBOUND_PAGE = Path(__file__).with_name("doors_rebound.js")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {urlsplit(EVIL).hostname} 127.0.0.1, MAP {REBOUND} 127.0.0.1",
]
SETTLE_MS = 3000
BAR_WAYS = 20
WORKER_SECONDS = 120.0


class BlankPage(BaseHTTPRequestHandler):
    """A page of another site, into which its ways are put; it keeps the cookies that it is sent."""

    cookies: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        self.cookies.update(filter(None, [self.headers["Cookie"]]))
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


def tried_by_pages(platform: Platform, owner: Owner, target: Target, folder: Path) -> Found:
    """The ways of pages of another name, of another port, and of a name rebound to the server."""
    path, explorer = f"/api/deployments/{target.deployment}/create_flow_run", target.explorer
    servers = {"Prefect": owner.prefect, "MLflow": owner.mlflow, "Explorer": f"http://{explorer}"}
    given = [*servers.values(), owner.prefect + path, doors.artifact_url(owner.mlflow)]
    call = [CALLED, json.dumps(CALL)]
    outcomes: Found = {}
    with other_site() as port, browser(folder) as context:
        page = context.new_page()
        for name in ("Prefect", "MLflow"):
            page.goto(platform.link(name))
        for site in (f"{EVIL}:{port}", f"http://127.0.0.1:{port}"):
            page.goto(site)
            before = owner.state()
            answers = page.evaluate(PAGE.read_text(), [*given, *call])
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
            answers = page.evaluate(REBOUND_PAGE.read_text(), [path, *call])
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


def own_browser_works(platform: Platform, folder: Path) -> bool:
    """Whether links log in, and the cookie alone does once the browser was closed."""
    for attempt in ("link", "cookie"):
        with browser(folder) as context:
            page = context.new_page()
            page.set_default_timeout(60_000)
            for name, path, word in (
                ("Prefect", "/deployments", "audit"),
                ("MLflow", "/#/experiments", "Default"),
            ):
                plain, _, _ = platform.link(name).partition("/?")
                if attempt == "link":
                    page.goto(platform.link(name))
                page.goto(plain + path)
                try:
                    page.get_by_text(word, exact=True).first.wait_for()
                except Error:
                    return False
    return True


def process_tree(platform: Platform) -> list[int]:
    """The command and all that it has started."""
    command = psutil.Process(platform.process.pid)
    return [command.pid, *(child.pid for child in command.children(recursive=True))]


def ports_of(platform: Platform) -> dict[str, int]:
    """Program → a port on which it listens."""
    return {doors.program_at(port): port for _, port in doors.listening(process_tree(platform))}


def tried(profile: str, folder: Path) -> tuple[dict[str, Found], bool]:
    """All ways into one profile, by kind, and whether its owner's browser gets in."""
    lab = Lab(folder)
    home = lab.home / profile if profile != "local" else lab.home
    with ExitStack() as opened:
        platform = opened.enter_context(platform_of(lab, "--profile", profile))
        owner = Owner(platform.prefect, platform.mlflow, platform.login["Authorization"][7:])
        owner.keep_artifact()
        until(lambda: "worker" in ports_of(platform), WORKER_SECONDS)
        ports = ports_of(platform)
        explorer, explorer_process = opened.enter_context(explorer_of(home))
        processes = [*process_tree(platform), explorer_process]
        addresses = doors.listening(processes)
        known = {"postgres": ports.get("postgres", 0), "redis": ports.get("redis-server", 0)}
        target = doors.target_of(owner, home, processes, explorer, **known)
        before = owner.state()
        by_user = doors.tried_by_another_user(target)
        after = owner.state()
        by_user["all ways together change something"] = (
            None if after == before else f"{before} became {after}"
        )
        for address, port in addresses:
            by_user[f"port of {doors.program_at(port)}: reach it from elsewhere"] = (
                None if address.startswith("127.") else address
            )
        works = own_browser_works(platform, folder / "own-browser")
        by_pages = doors.tried_by_pages(owner, target)
        by_pages |= tried_by_pages(platform, owner, target, folder / "browser")
        for cookie in BlankPage.cookies:
            by_user |= doors.tried_with_a_login(target, {"Cookie": cookie})
        outcomes = {
            "user": by_user,
            "strangers": doors.tried_by_strangers(owner, [port for _, port in addresses]),
            "pages": by_pages,
        }
        return outcomes, works


def measure(profiles: list[str]) -> dict[str, Any]:
    """All figures, and whether they meet their bars."""
    counts = dict.fromkeys(("user", "strangers", "pages"), 0)
    is_open: dict[str, str] = {}
    works: dict[str, bool] = {}
    for profile in profiles:
        # Other users have to get as far as to the home, or nothing is shown.
        folder = Path(tempfile.mkdtemp(prefix="dynolab-doors-"))
        folder.chmod(0o755)
        try:
            outcomes, works[profile] = tried(profile, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for kind, ways in outcomes.items():
            counts[kind] += len(ways)
            is_open |= {f"{profile}, {way}": got for way, got in doors.open_ways(ways).items()}
    ways_tried = sum(counts.values())
    return {
        "ways_tried": ways_tried,
        "ways_open": len(is_open),
        "open": is_open,
        **{f"ways_tried_by_{kind}": count for kind, count in counts.items()},
        **{f"own_browser_works_{profile}": well for profile, well in works.items()},
        "bars": {
            "ways_tried": [BAR_WAYS, ways_tried >= BAR_WAYS],
            "ways_open": [0, not is_open],
            **{f"own_browser_works_{profile}": [True, well] for profile, well in works.items()},
        },
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", choices=PROFILES, action="append")
    figures = measure(parser.parse_args().profile or list(PROFILES))
    print(json.dumps(figures))
    sys.exit(not all(met for _, met in figures["bars"].values()))
