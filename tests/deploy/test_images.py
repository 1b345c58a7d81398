"""The Dockerfiles: what they hold, and what they install."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.flows.lab import ROOT

DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.Dockerfile"))


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
