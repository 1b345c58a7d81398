"""A Slurm of two nodes on this machine: Debian's own daemons, with a key and ports of their own.

Each node is a `slurmd` by a name that resolves to this machine for it and its jobs alone: the
daemons run in a mount namespace with an `/etc/hosts` of their own, which needs root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tasks.runtime.system.processes import free_port
from tests.flows.lab import ROOT, Lab, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "unshare", "taskset")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
SBATCH = ROOT / "deploy" / "slurm" / "dynolab.sbatch"
NODES = ("node1", "node2")
SECONDS = 120.0


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (slurmctld, slurmd, slurm-client, munge)"
    if os.geteuid() != 0:
        return "needs root"
    alone = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return "" if alone.returncode == 0 else "no mount namespaces here"


class Cluster:
    """The daemons and the commands of one cluster, whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.host = folder, socket.gethostname()
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in ("slurmctld", *NODES)}
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2)
        self.cores = dict(zip(NODES, (cores[:half], cores[-half:]), strict=True))
        """Of each node: so a rank there has as many threads as one of two on this machine."""

        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        (folder / "hosts").write_text(f"127.0.0.1 localhost {self.host} {' '.join(NODES)}\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (folder / "slurm.conf").write_text(self._settings())

    def _settings(self) -> str:
        nodes = [
            f"NodeName={name} NodeHostname={self.host} NodeAddr=127.0.0.1 Port={self.ports[name]}"
            f" CPUs={len(cores)} State=UNKNOWN"
            for name, cores in self.cores.items()
        ]
        partition = "Nodes=ALL MaxTime=INFINITE State=UP"
        return "\n".join(
            [
                "ClusterName=test",
                f"SlurmctldHost={self.host}(127.0.0.1)",
                f"SlurmctldPort={self.ports['slurmctld']}",
                "SlurmUser=root",
                "AuthType=auth/munge",
                # A job that is queued again waits for as long as its credential lasts.
                f"AuthInfo=socket={self.folder}/munge.socket,cred_expire=5",
                f"StateSaveLocation={self.folder}/state",
                f"SlurmdSpoolDir={self.folder}/%n",
                f"SlurmctldPidFile={self.folder}/slurmctld.pid",
                f"SlurmdPidFile={self.folder}/%n.pid",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU",
                "SwitchType=switch/none",
                "MpiDefault=none",
                "JobAcctGatherType=jobacct_gather/none",
                "SlurmdParameters=config_overrides",  # fewer cores than the machine's
                "ReturnToService=2",
                "SlurmdTimeout=10",
                "KillWait=60",
                "PreemptType=preempt/partition_prio",
                "PreemptMode=REQUEUE",
                *nodes,
                f"PartitionName=low Default=YES PriorityTier=1 GraceTime=60 {partition}",
                f"PartitionName=high PriorityTier=10 PreemptMode=OFF {partition}",
                "",
            ]
        )

    def start(self, name: str) -> None:
        """Start `munged`, `slurmctld` or a node."""
        words = {
            "munged": [
                *("munged", "--foreground", "--force"),
                *(f"--socket={self.folder}/munge.socket", f"--key-file={self.folder}/munge.key"),
                *(f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/seed"),
                f"--log-file={self.folder}/munged.log",
            ],
            "slurmctld": ["slurmctld", "-D"],
        }.get(name, ["slurmd", "-D", "-N", name])
        hosts = f'mount --bind {self.folder}/hosts /etc/hosts && exec "$@"'
        if name in self.cores:
            words = ["taskset", "--cpu-list", ",".join(map(str, self.cores[name])), *words]
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", hosts, "sh", *words],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_all(self) -> None:
        """Start all daemons and wait until both nodes take jobs."""
        for folder in ("state", *NODES):
            (self.folder / folder).mkdir()
        self.start("munged")
        until((self.folder / "munge.socket").exists, SECONDS)
        for name in ("slurmctld", *NODES):
            self.start(name)
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until both nodes are free."""
        words = ("sinfo", "-h", "-N", "-p", "low", "-o", "%T")
        until(lambda: self.run(*words).split() == ["idle"] * len(NODES), SECONDS)

    def kill(self, name: str) -> None:
        """SIGKILL for a daemon, and with a node for all that runs on it."""
        daemon = self.daemons[name]
        place = _namespace(daemon.pid)
        with suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        if place in (None, _namespace(os.getpid())):
            return  # it had ended, or not yet begun: all else here is not its own
        # Slurm starts what runs a job with nothing of its daemon's, but for the mount namespace.
        while there := [pid for pid in psutil.pids() if _namespace(pid) == place]:
            for pid in there:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def stop(self) -> None:
        """End every daemon."""
        for name in reversed(list(self.daemons)):
            self.kill(name)

    def run(self, *words: str) -> str:
        """What a command of Slurm prints; empty while the controller does not answer."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    def submit(self, lab: Lab, log: Path, *words: str, options: tuple[str, ...] = ()) -> str:
        """Submit a command of Dynolab on both nodes; returns the job's number."""
        chosen = {
            "DYNOLAB_PYTHON": sys.executable,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(len(self.cores[NODES[0]])),
        }
        slurm = {name: self.environment[name] for name in ("SLURM_CONF", "PATH")}
        environment = lab.environment | slurm | chosen
        command = ["sbatch", "--parsable", "--nodes=2", f"--output={log}", f"--chdir={ROOT}"]
        done = subprocess.run(
            [*command, *options, str(SBATCH), *words],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """A job's state, such as RUNNING; empty while the controller does not answer."""
        for word in self.run("scontrol", "show", "job", job).split():
            if word.startswith("JobState="):
                return word.partition("=")[2]
        return ""

    def ended(self, job: str, seconds: float = 500.0) -> str:
        """The state in which a job ends, which is awaited."""
        running = ("", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "PREEMPTED")
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) in running:
            assert time.monotonic() < deadline, f"the job is still {state}"
            time.sleep(0.5)
        return state


def _namespace(pid: int) -> Path | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/mnt").readlink()
    return None


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is ready, until the block ends."""
    made = Cluster(folder)
    try:
        made.start_all()
        yield made
    finally:
        made.stop()
