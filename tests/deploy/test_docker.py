"""The Compose file and the Dockerfiles: their schemas, their promises, and what they install."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import suppress
from importlib import resources
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from flows.deployment.register import POOLS
from flows.up import worker_arguments
from tasks.runtime.servers.serve import _APPLICATIONS
from tests.budget import CORE
from tests.deploy.composed import FILE, is_checked, one_shots, services, variables
from tests.flows.lab import ROOT

SERVICES = services()
OURS = {name for name, service in SERVICES.items() if "build" in service}
SECRET = re.compile(r"PASSWORD|SECRET|KEY|TOKEN|AUTH")
HOME = "/home/dynolab/home"


def test_it_is_valid_by_the_compose_specification() -> None:
    vendored = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    jsonschema.validate(yaml.safe_load(FILE.read_text()), json.loads(vendored.read_text()))


def test_no_secret_has_a_default_or_stands_in_the_file() -> None:
    asked = variables(FILE.read_text())
    secrets = {variable.name: variable for variable in asked if SECRET.search(variable.name)}
    assert secrets.keys() >= {
        "POSTGRES_PASSWORD",
        "SWEEPS_PASSWORD",
        "DYNOLAB_KEY",
        "DYNOLAB_TOKEN",
    }
    assert all(secret.required and secret.default is None for secret in secrets.values())
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|_KEY|AUTH_STRING|://[^/]*@", f"{variable}={value}"):
                assert "${" in value or variable == "DYNOLAB_SERVER_NAMES", (name, variable)
        words = json.dumps([service.get("command", []), service.get("healthcheck", {})])
        assert not variables(words), "arguments can be read by everybody"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_asked_for_its_health_and_started_again_or_ends(name: str) -> None:
    ends = name in one_shots()
    assert is_checked(SERVICES[name]) != ends
    assert SERVICES[name]["restart"] == ("no" if ends else "unless-stopped")
    if name not in OURS:
        assert re.search(r":\d+\.\d+[^:]*@sha256:[0-9a-f]{64}$", SERVICES[name]["image"])
    for other, wanted in SERVICES[name].get("depends_on", {}).items():
        if wanted["condition"] == "service_healthy":
            assert is_checked(SERVICES[other]) and "profiles" not in SERVICES[other]


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:4200:4200", "127.0.0.1:5000:5000"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_containers_run_modules_with_an_init_and_no_more_rights_than_they_need(
    name: str,
) -> None:
    service = SERVICES[name]
    limits = {
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "read_only": True,
    }
    assert {setting: service[setting] for setting in limits} == limits
    writable = [path.partition(":")[0] for path in service["tmpfs"]]
    writable += [volume.partition(":")[2] for volume in service.get("volumes", [])]
    assert writable == ["/tmp", HOME]
    assert "POSTGRES_PASSWORD" not in json.dumps(service) or "server" in service["image"]
    assert (ROOT / service["build"]["dockerfile"]).exists()
    python, option, module, *_ = service["command"]
    assert (python, option) == ("python", "-m")
    assert importlib.util.find_spec(module) is not None


def test_every_pool_has_workers_started_as_the_command_up_starts_them() -> None:
    names = {
        "worker-cpu": ("cpu", "cpu"),
        "worker-cpu-training": ("training", "training"),
        "worker-gpu": ("training", "gpu"),
    }
    assert {pool for pool, _ in names.values()} == set(POOLS)
    for service, (pool, name) in names.items():
        wanted = ["python", "-m", "prefect", *worker_arguments(pool, name), "--with-healthcheck"]
        assert SERVICES[service]["command"] == wanted
        assert SERVICES[service]["stop_grace_period"] == "3m", "time to save a state"
    gpu = SERVICES["worker-gpu"]
    assert (gpu["profiles"], gpu["build"]["args"]) == (["gpu"], {"DEVICE": "gpu"})
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    # Registering again ends no run of workers that are there.
    assert SERVICES["bootstrap"]["command"] == ["python", "-m", "flows.deploy"]


@pytest.mark.parametrize(
    ("service", "name", "port"),
    [
        ("prefect-server", "prefect-api", 4200),
        ("mlflow", "mlflow", 5000),
    ],
)
def test_servers_are_started_by_the_program_that_the_command_up_starts(
    service: str, name: str, port: int
) -> None:
    folder = f"{HOME}/{name.removesuffix('-api')}"
    wanted = [
        "python",
        "-m",
        "tasks.runtime.servers.serve",
        name,
        folder,
        f"0.0.0.0:{port}",
        "standing",
    ]
    assert SERVICES[service]["command"] == wanted and name in _APPLICATIONS


def test_prefects_processes_share_all_that_they_must() -> None:
    migrate, server, services = (
        SERVICES[name]["environment"]
        for name in ("prefect-migrate", "prefect-server", "prefect-services")
    )
    assert migrate == server == services
    assert server["PREFECT_SERVER_DOCKET_URL"] == server["PREFECT_REDIS_MESSAGING_URL"]
    assert server["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] == "false", "migrated once, before"


IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.name)
def test_the_linter_has_nothing_to_say(file: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    linted = subprocess.run([program, "--no-color", file], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.name)
def test_nothing_runs_as_root_and_nothing_is_of_the_latest_version(file: Path) -> None:
    text = file.read_text()
    users = re.findall(r"^USER (.*)$", text, re.MULTILINE)
    assert users and set(users) == {"1000"}
    stages = set(re.findall(r" AS (\S+)$", text, re.MULTILINE))
    for image in re.findall(r"^FROM (\S+)", text, re.MULTILINE):
        named = re.search(r":\d+\.\d+.*@sha256:[0-9a-f]{64}$", image)
        assert image in stages or image == "torch-${DEVICE}" or named


LOCKS = {file.stem: file.read_text() for file in (ROOT / "locks").glob("*.lock")}
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def test_every_package_is_locked_once_with_hashes_and_installed_only_by_them() -> None:
    blocks = [
        block
        for text in LOCKS.values()
        for block in re.split(r"^(?=[a-z])", text.partition("\n")[2], flags=re.MULTILINE)
        if block
    ]
    shape = r"[a-z0-9-]+==\S+( ; [^\\]*)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert [block for block in blocks if not re.fullmatch(shape, block)] == []
    names = [name for text in LOCKS.values() for name, _ in PINNED.findall(text)]
    assert len(names) - len({*names}) == 1, "torch alone is locked twice, for CPUs and for GPUs"
    made = [*IMAGES, ROOT / "Makefile"]
    for command in (
        words
        for file in made
        for words in re.findall(r"pip install ([^&\n]*)", file.read_text().replace("\\\n", " "))
    ):
        assert "--no-deps" in command and "extra-index" not in command
        assert "--require-hashes" in command or re.search(r"--editable \.$", command.strip())
        for lock in re.findall(r"locks/([\w-]+)\.lock", command):
            assert lock in LOCKS


def test_what_is_locked_is_what_the_project_asks_for() -> None:
    """In the versions that this environment has, so that none is tested and another locked."""
    pinned = dict(PINNED.findall("".join(LOCKS.values())))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(line for name, lines in extras.items() if name != "trackers" for line in lines),
    ]
    wanted = [Requirement(line) for line in asked if not line.startswith("dynolab")]
    for requirement in wanted:
        version = pinned[canonicalize_name(requirement.name)].partition("+")[0]
        assert requirement.specifier.contains(version), requirement


def test_what_is_locked_installs_on_the_oldest_python_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    newer = {}
    for name, _ in PINNED.findall("".join(LOCKS.values())):
        with suppress(PackageNotFoundError):  # CUDA's, which a machine without GPUs lacks
            asked = metadata(name).get("Requires-Python")
            if asked and not SpecifierSet(asked).contains(oldest):
                newer[name] = asked
    assert newer == {}


def test_the_builds_of_images_are_sent_what_they_copy_and_no_secret() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "all that is not named stays here"
    sent = {line[1:] for line in rules if line.startswith("!")}
    assert {*CORE} <= sent
    copied = {
        source.partition("/")[0]
        for file in IMAGES
        for words in re.findall(
            r"^COPY --chown=1000 (.*) \S+$", file.read_text().replace("\\\n", ""), re.MULTILINE
        )
        for source in words.split()
    }
    assert copied - {"."} <= sent
    assert {"**/.*", "**/*.env", "**/*.pem", "**/*.key"} <= set(rules)


def test_the_servers_image_has_all_of_the_project_that_its_program_needs(tmp_path: Path) -> None:
    text = (ROOT / "docker/server.Dockerfile").read_text().replace("\\\n", " ")
    for sources, folder in re.findall(r"^COPY --chown=1000 (.*) (\S+/)$", text, re.MULTILINE):
        for source in sources.split():
            if source.endswith((".py", ".pyi")):
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
