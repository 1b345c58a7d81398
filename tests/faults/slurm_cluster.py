"""A Slurm of two nodes on this machine: a slurmctld and two slurmd on loopback, as root."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil

from tasks.runtime.system.processes import free_port, marked_processes
from tests.flows.lab import until

CORES = sorted(os.sched_getaffinity(0))
HALVES = CORES[: max(1, len(CORES) // 2)], CORES[-max(1, len(CORES) // 2) :]
START_SECONDS = 60.0

CONFIG = """
ClusterName=loop
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdTimeout=10
KillWait=20
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes={nodes} Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=high Nodes={nodes} PriorityTier=10 MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why this machine cannot run a Slurm; None if it can."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if not _program(name)]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install slurm-wlm"
    return None if os.geteuid() == 0 else "slurmd runs as root"


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin")


class Cluster:
    """Two nodes, each with half of this machine's cores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir(parents=True)
        name = f"dyno{uuid4().hex[:6]}x"
        self.nodes = f"{name}0", f"{name}1"
        host = socket.gethostname().partition(".")[0]
        lines = [
            CONFIG.format(host=host, folder=folder, port=free_port(), nodes=",".join(self.nodes))
        ]
        for node in self.nodes:
            at = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
            lines.append(f"NodeName={node} {at} CPUs=1 RealMemory=1000\n")
        self.config = folder / "slurm.conf"
        self.config.write_text("".join(lines))
        self.environment = {"SLURM_CONF": str(self.config)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._daemon("slurmctld", "slurmctld", "-D")
        for node in self.nodes:
            self.start_node(node)
        until(lambda: self("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", START_SECONDS)

    def start_node(self, node: str) -> None:
        """Starts a node's slurmd, on its half of the cores."""
        daemon = self._daemon(node, "slurmd", "-D", "-N", node)
        os.sched_setaffinity(daemon.pid, HALVES[self.nodes.index(node)])

    def kill_node(self, node: str) -> None:
        """As if its power went: its slurmd and all that it has started, at once."""
        daemon = self._daemons[node]
        steps = psutil.Process(daemon.pid).children(recursive=True)
        daemon.kill()
        daemon.wait()
        for process in steps:
            process.kill()
        for pid in marked_processes(f"SLURMD_NODENAME={node}"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        for user_jobs in self("squeue", "-h", "-o", "%i").split():
            self("scancel", user_jobs)
        until(lambda: not self("squeue", "-h"), START_SECONDS)
        for daemon in reversed(list(self._daemons.values())):
            daemon.terminate()
            daemon.wait(START_SECONDS)

    def __call__(self, *command: str, environment: Mapping[str, str] = {}) -> str:
        """What one of Slurm's commands prints."""
        return subprocess.run(
            command,
            env={**os.environ, **environment, **self.environment},
            check=True,
            text=True,
            capture_output=True,
        ).stdout.strip()

    def state(self, job: str) -> str:
        """A job's state, as `squeue` names it; empty once Slurm has forgotten it."""
        shown = self("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def _daemon(self, name: str, program: str, *options: str) -> subprocess.Popen[bytes]:
        path = _program(program)
        assert path
        with (self.folder / f"{name}.log").open("ab") as log:
            daemon = subprocess.Popen(
                [path, *options],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
            )
        self._daemons[name] = daemon
        return daemon


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster while the block runs."""
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
