"""The Compose file: its schema, its promises, and that it starts what tests start."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import redis
import yaml
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from flows.deploy import POOLS
from flows.up import worker_arguments
from tasks.runtime.servers.serve import _APPLICATIONS
from tasks.runtime.system.processes import free_port
from tests.deploy.composed import FILE, interpolated, is_checked, one_shots, services, variables
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
    assert secrets.keys() >= {"POSTGRES_PASSWORD", "DYNOLAB_KEY", "DYNOLAB_TOKEN"}
    assert all(secret.required and secret.default is None for secret in secrets.values())
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|_KEY|AUTH_STRING|://[^/]*@", f"{variable}={value}"):
                assert "${" in value or variable == "DYNOLAB_SERVER_NAMES", (name, variable)


def test_no_secret_is_an_argument_of_a_command() -> None:
    for service in SERVICES.values():
        words = json.dumps([service.get("command", []), service.get("healthcheck", {})])
        assert not variables(words), words


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_asked_for_its_health_and_started_again_or_ends(name: str) -> None:
    ends = name in one_shots()
    assert is_checked(SERVICES[name]) != ends
    assert SERVICES[name]["restart"] == ("no" if ends else "unless-stopped")


def test_services_wait_for_what_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert is_checked(SERVICES[name]) and "profiles" not in SERVICES[name], name


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:4200:4200", "127.0.0.1:5000:5000"]


def test_images_of_others_have_versions() -> None:
    for name, service in SERVICES.items():
        if name not in OURS:
            tag = service["image"].rpartition(":")[2]
            assert re.match(r"\d+\.\d+", tag), service["image"]


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_containers_run_modules_with_an_init_and_no_more_rights_than_they_need(
    name: str,
) -> None:
    service = SERVICES[name]
    limits = {"init": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    assert {setting: service[setting] for setting in limits} == limits
    assert (ROOT / service["build"]["dockerfile"]).exists()
    python, option, module, *_ = service["command"]
    assert (python, option) == ("python", "-m")
    assert importlib.util.find_spec(module) is not None


def test_workers_have_time_to_save_and_the_gpu_is_one_profiles_alone() -> None:
    workers = ("worker-cpu", "worker-cpu-training", "worker-gpu")
    assert {SERVICES[name]["stop_grace_period"] for name in workers} == {"3m"}
    gpu = SERVICES["worker-gpu"]
    assert (gpu["profiles"], gpu["build"]["args"]) == (["gpu"], {"DEVICE": "gpu"})
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


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


def test_registering_again_ends_no_run_of_workers_that_are_there() -> None:
    assert SERVICES["bootstrap"]["command"] == ["python", "-m", "flows.deploy"]


def environment(*names: str) -> dict[str, Any]:
    return {
        name: value for service in names for name, value in SERVICES[service]["environment"].items()
    }


def test_prefects_processes_share_all_that_they_must() -> None:
    migrate, server, services = (
        SERVICES[name]["environment"]
        for name in ("prefect-migrate", "prefect-server", "prefect-services")
    )
    assert migrate == server == services
    assert server["PREFECT_SERVER_DOCKET_URL"] == server["PREFECT_REDIS_MESSAGING_URL"]
    assert server["PREFECT_SERVER_DATABASE_MIGRATE_ON_START"] == "false", "migrated once, before"


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_redis_takes_its_password_from_the_environment_and_keeps_it(tmp_path: Path) -> None:
    port, environment = free_port(), SERVICES["redis"]["environment"]
    command = [interpolated(word, {}) for word in SERVICES["redis"]["command"]]
    command[-1] = command[-1].replace("dir /data", f"dir {tmp_path}\nport {port}\nbind 127.0.0.1")
    given = {
        name: interpolated(value, {"REDIS_PASSWORD": "word"}) for name, value in environment.items()
    }
    with subprocess.Popen(
        command, env=os.environ | given, stdout=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        try:
            client = redis.Redis(port=port, password="word", retry=Retry(ConstantBackoff(0.1), 100))
            assert client.ping()
            client.close()
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port, password="guess").ping()
            assert "word" not in Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        finally:
            process.terminate()
