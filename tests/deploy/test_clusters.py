"""The Kubernetes files, by the schemas of those who read them, and the sbatch file."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from flows.deployment.register import COMMAND
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters
from tasks.runtime.system.settings import Settings
from tests.deploy.kubeflow import TRAIN_JOB, TRAINING_RUNTIME
from tests.flows.lab import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
TEMPLATE = json.loads((FOLDER / "base-job-template.json").read_text())
RUNTIME, JOB = yaml.safe_load_all((FOLDER / "trainjob.yaml").read_text())
(REPLICATED,) = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"]
ENVIRONMENT = {variable["name"]: variable["value"] for variable in JOB["spec"]["trainer"]["env"]}
VERSIONS = ("1.33.0", kubernetes_validate.latest_version())


def made(**values: Any) -> dict[str, Any]:
    """The job that Prefect's worker makes of the template for a run."""
    nobody = PrefectClient("http://127.0.0.1:1/api")  # the template asks the server for nothing
    configuration = asyncio.run(
        KubernetesWorkerJobConfiguration.from_template_and_values(TEMPLATE, values, client=nobody)
    )
    configuration.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="a run"))
    return configuration.job_manifest


def checked(job: dict[str, Any]) -> dict[str, Any]:
    """The job's pod, valid by Kubernetes' schema."""
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    # Prefect's worker refuses a template without these two, which are a Job's and no Pod's;
    # Kubernetes drops them.
    extra = {name: pod.pop(name) for name in ("completions", "parallelism") if name in pod}
    for version in VERSIONS:
        kubernetes_validate.validate(job, version, strict=True)
    assert extra in ({}, {"completions": 1, "parallelism": 1})
    return pod


def is_careful(pod: dict[str, Any]) -> None:
    """No root, memory for NCCL, a home that stays, time to save, secrets from a secret."""
    user = pod["securityContext"]
    assert (user["runAsNonRoot"], user["runAsUser"]) == (True, 1000)
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] >= 180
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "dynolab"}}]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"shm": "/dev/shm", "tmp": "/tmp", "home": "/home/dynolab/home"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert "persistentVolumeClaim" in volumes["home"]


def test_every_variable_of_the_template_is_used_and_there() -> None:
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(TEMPLATE["job_configuration"])))
    assert used == set(TEMPLATE["variables"]["properties"])
    jsonschema.Draft202012Validator.check_schema(TEMPLATE["variables"])
    properties = TEMPLATE["variables"]["properties"]
    defaults = {name: known["default"] for name, known in properties.items()}
    jsonschema.validate(defaults, TEMPLATE["variables"])


def test_a_run_gets_a_valid_job_that_takes_care() -> None:
    job = made()
    is_careful(checked(job))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert (
        container["args"]
        == ["python", *COMMAND[1:]]
        == ["python", "-m", "tasks.runtime.flow_run_process"]
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR"] == "reschedule", (
        "an evicted run"
    )


def test_a_deployments_variables_arrive_in_the_job() -> None:
    job = made(
        gpus=8,
        memory="256Gi",
        image="registry/worker@sha256:0",
        grace_seconds=600,
        command=shlex.join(COMMAND),
        working_dir="/app",
        env={"A": "b"},
    )
    pod = checked(job)
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "256Gi"}
    assert container["image"] == "registry/worker@sha256:0"
    assert container["args"] == COMMAND and container["workingDir"] == "/app"
    assert {"name": "A", "value": "b"} in container["env"]
    assert pod["terminationGracePeriodSeconds"] == 600


def test_the_training_job_and_its_runtime_are_valid() -> None:
    jsonschema.validate(RUNTIME, TRAINING_RUNTIME)
    jsonschema.validate(JOB, TRAIN_JOB)
    reference = JOB["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (RUNTIME["kind"], RUNTIME["metadata"]["name"])
    assert RUNTIME["metadata"]["namespace"] == JOB["metadata"]["namespace"]
    count = JOB["spec"]["trainer"]["numNodes"]
    whole = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "node"},
        "spec": {**REPLICATED["template"]["spec"], "completions": count, "parallelism": count},
    }
    is_careful(checked(whole))


def test_the_first_pods_command_ends_the_training_job() -> None:
    job = REPLICATED["template"]["spec"]
    assert job["completionMode"] == "Indexed", "as a success policy and the pods' names want it"
    assert job["successPolicy"] == {"rules": [{"succeededIndexes": "0"}]}
    assert job["backoffLimit"] > 0, "lost pods are started again"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore", "as often as pods are preempted"
    labels = REPLICATED["template"]["metadata"]["labels"]
    assert labels == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def test_all_hosts_meet_at_the_first_pod_and_there_are_as_many_as_pods() -> None:
    trainer = JOB["spec"]["trainer"]
    settings = Settings.from_environment(ENVIRONMENT)
    assert settings.hosts == trainer["numNodes"]
    pod = REPLICATED["template"]["spec"]["template"]["spec"]
    assert 0 < settings.grace_seconds < pod["terminationGracePeriodSeconds"]
    name = JOB["metadata"]["name"]
    assert str(settings.rendezvous).startswith(f"{name}-node-0-0.{name}:")
    gpus = trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"] * settings.hosts
    _, _, file, *changes = shlex.split(ENVIRONMENT["DYNOLAB_STUDY"])
    study = load_parameters(
        StudyParameters, ROOT / file, [change for change in changes if change != "--set"]
    )
    assert study.preference.engine.ranks == study.sft.engine.ranks == gpus


@pytest.mark.parametrize(
    ("index", "expected"),
    [("0", "dynolab study --plan"), ("1", "--nnodes=2 --node-rank=1 --nproc-per-node=2")],
)
def test_pods_choose_their_part_by_their_number(index: str, expected: str, tmp_path: Path) -> None:
    *tini, script = JOB["spec"]["trainer"]["command"]
    assert tini == ["tini", "-s", "--", "sh", "-c"]
    for name in ("dynolab", "python", "sleep"):  # the last one ends the loop
        (tmp_path / name).write_text(
            f'#!/bin/sh\necho {name} "$@"\n[ {name} != sleep ] || kill -9 $PPID'
        )
        (tmp_path / name).chmod(0o755)
    printed = subprocess.run(
        ["/bin/sh", "-c", script],
        env={
            **ENVIRONMENT,
            "PATH": str(tmp_path),
            "JOB_COMPLETION_INDEX": index,
            "DYNOLAB_STUDY": "study --plan",
        },
        capture_output=True,
        text=True,
    ).stdout
    assert expected in printed
    if index == "1":
        assert f"--rdzv-endpoint={ENVIRONMENT['DYNOLAB_RENDEZVOUS']}" in printed


def test_runs_are_reached_by_nobody_and_ranks_by_each_other_alone() -> None:
    policies = list(yaml.safe_load_all((FOLDER / "network-policy.yaml").read_text()))
    for policy, version in product(policies, VERSIONS):
        kubernetes_validate.validate(policy, version, strict=True)
    runs, ranks = (policy["spec"] for policy in policies)
    (chosen,) = runs["podSelector"]["matchExpressions"]
    assert chosen["key"] in made()["spec"]["template"]["metadata"]["labels"]
    assert (chosen["operator"], runs["ingress"]) == ("Exists", [])
    labels = REPLICATED["template"]["spec"]["template"]["metadata"]["labels"]
    assert labels == ranks["podSelector"]["matchLabels"]
    assert ranks["ingress"] == [{"from": [{"podSelector": ranks["podSelector"]}]}]
    assert {policy["metadata"]["namespace"] for policy in policies} == {
        JOB["metadata"]["namespace"]
    }


SBATCH = ROOT / "deploy" / "slurm" / "dynolab.sbatch"
SRUN = """#!/bin/sh
echo "$@" | tee -a "$(dirname "$0")/calls"
case "$SLURM_JOB_NUM_NODES $*" in
    3*--relative=0*) until grep -q relative=1 "$(dirname "$0")/calls"; do sleep 0.05; done ;;
esac
"""
"""Prints its arguments. The first node's waits until the other nodes' has begun."""


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_first_node_runs_the_command_and_torchrun_the_others(
    nodes: int, tmp_path: Path
) -> None:
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/sh\necho node1; echo node2\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_ON_NODE": "8",
        "DYNOLAB_PYTHON": "python",
    }
    job = subprocess.run(
        ["bash", str(SBATCH), "study", "--plan"], env=environment, capture_output=True, text=True
    )
    assert job.returncode == 0, job.stderr
    assert "--relative=0 --nodes=1 --ntasks=1 python -m dynolab study --plan" in job.stdout
    assert ("--relative=1 --nodes=2 --ntasks=2" in job.stdout) is (nodes == 3)
    assert ("tasks.runtime.launch.rank_entry" in job.stdout) is (nodes == 3)


@pytest.mark.parametrize(
    ("code", "lost", "restarts", "requeued"),
    [
        (0, True, 0, False),
        (2, False, 0, False),
        (2, True, 0, True),
        (2, True, 10, False),
        (130, False, 10, True),
    ],
)
def test_a_job_is_queued_again_when_told_to_end_and_when_a_node_is_lost(
    code: int, lost: bool, restarts: int, requeued: bool, tmp_path: Path
) -> None:
    srun = f"#!/bin/sh\ncase $* in *true) exit {int(lost)};; *) exit {code};; esac\n"
    for name, text in {"srun": srun, "scontrol": '#!/bin/sh\necho "$@"\n'}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    job = subprocess.run(
        ["bash", str(SBATCH), "study"], env=environment, capture_output=True, text=True
    )
    assert job.returncode == code
    assert (job.stdout.strip() == "requeue 7") is requeued


def test_the_job_is_requeued_and_has_time_to_save_its_state() -> None:
    text = SBATCH.read_text()
    assert "#SBATCH --requeue" in text and "#SBATCH --open-mode=append" in text
    signal = int(text.partition("--signal=TERM@")[2].split()[0])
    grace = int(text.partition("DYNOLAB_GRACE_SECONDS:-")[2].partition("}")[0])
    assert grace < signal


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="Slurm is not installed")
def test_slurm_takes_the_file() -> None:
    """On a machine of a cluster; `tests/faults/test_slurm.py` starts one of its own."""
    if subprocess.run(["sinfo"], capture_output=True).returncode:
        pytest.skip("no Slurm controller answers")
    subprocess.run(["sbatch", "--test-only", "--nodes=2", str(SBATCH), "study"], check=True)
