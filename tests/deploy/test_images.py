"""The Dockerfiles, and the script that pins what they stand on."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import metadata
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import ClassVar
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest
from packaging.specifiers import SpecifierSet

from tests.flows.lab import ROOT

DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_linter_has_nothing_to_say(file: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    linted = subprocess.run([program, "--no-color", file], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_runs_as_root_and_nothing_is_of_the_latest_version(file: Path) -> None:
    text = file.read_text()
    users = re.findall(r"^USER (.*)$", text, re.MULTILINE)
    assert users and set(users) == {"1000"}
    stages = set(re.findall(r" AS (\S+)$", text, re.MULTILINE))
    for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        assert image in stages or image == "torch-${DEVICE}" or re.search(r":\d+\.\d+", image)


def test_what_is_installed_comes_from_the_lock() -> None:
    locked = {
        re.split(r"[=\[]", line)[0].lower().replace("_", "-")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
    }
    for file in FILES:
        text = file.read_text().replace("\\\n", " ")
        for command in re.findall(r"pip install ([^&\n]*)", text):
            assert "requirements.lock" in command or "--no-deps" in command
            words = re.sub(r"--[\w-]+(?: (?:requirements\.lock|https\S+))?", "", command).split()
            names = {word.strip('"').partition("[")[0] for word in words} - {"."}
            assert names <= locked, file.name


def test_what_is_locked_installs_on_the_oldest_python_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if "==" in line]
    newer = {
        name: asked
        for name in names
        if (asked := metadata(name).get("Requires-Python"))
        and not SpecifierSet(asked).contains(oldest)
    }
    assert newer == {}


def test_the_servers_image_has_all_of_the_project_that_its_program_needs(tmp_path: Path) -> None:
    text = (DOCKER / "server.Dockerfile").read_text().replace("\\\n", " ")
    for sources, folder in re.findall(r"^COPY --chown=1000 (.*) (\S+/)$", text, re.MULTILINE):
        for source in sources.split():
            if source.endswith(".py"):
                (tmp_path / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, tmp_path / folder)
    program = (
        "import sys, tasks.runtime.servers.serve as serve; print(serve.__file__);"
        "print(*[m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'pydantic')])"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == [str(tmp_path / "tasks/runtime/servers/serve.py"), ""], (
        ran.stderr
    )


class Registry(BaseHTTPRequestHandler):
    """Gives everybody a token, and digests to who has one."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.asked.append(self.path)
        if self.headers["Authorization"] != "Bearer let me in":
            host, port = self.server.server_address[:2]
            realm = f'realm="http://{host}:{port}/token",service="test",scope="pull"'
            self.send_response(401)
            self.send_header("WWW-Authenticate", f"Bearer {realm}")
        elif self.path.endswith("/missing"):
            self.send_response(404)
        else:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()

    def do_GET(self) -> None:
        assert parse_qs(urlsplit(self.path).query) == {"service": ["test"], "scope": ["pull"]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "let me in"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def registry() -> Iterator[str]:
    Registry.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def pin() -> ModuleType:
    spec = spec_from_file_location("pin", DOCKER / "pin.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_image_of_a_registry_is_pinned_and_nothing_else_changes() -> None:
    with registry() as hub:
        for file in (*FILES, DOCKER / "compose.yaml"):
            text = file.read_text()
            once = pin().pinned(text, hub)
            assert once != text
            assert once.replace(f"@{DIGEST}", "") == text
            assert pin().pinned(once, hub) == once, "a pin is moved, not added to"
            for line in once.splitlines():
                foreign = re.match(r"\s*(image:|FROM) [a-z/]+:\d", line)
                assert bool(foreign) == (DIGEST in line), line
    assert "/v2/library/postgres/manifests/17.6-bookworm" in Registry.asked
    assert "/v2/chrislusf/seaweedfs/manifests/4.48" in Registry.asked


def test_an_image_that_there_is_not_leaves_the_file_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text("    image: postgres:missing\n")
    module = pin()
    with registry() as hub:
        monkeypatch.setattr(module, "pinned", lambda text: pin().pinned(text, hub))
        with pytest.raises(HTTPError, match="404"):
            module.main([str(file)])
    assert file.read_text() == "    image: postgres:missing\n"
