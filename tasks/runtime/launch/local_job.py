"""One host's part of a job: runs torchrun with this host's ranks and reports how they ended."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import signal
import socket
import struct
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dynolab.errors import RankFailed
from dynolab.rank_authentication import MEETING, SECRET
from dynolab.store.owner import this_process
from tasks.runtime.launch.devices import VISIBLE, gpus_visible, hold_devices, host_devices
from tasks.runtime.launch.own_gpu import gpu_lent_to_ranks
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.processes import Process, kill_marked, last_lines, start_child, stop_group

_GRACE_SECONDS = 10.0
_JOB_VARIABLE = "DYNOLAB_JOB"
OWNER_VARIABLE = "DYNOLAB_OWNER"
"""Set in the environment of ranks and their children: their supervisor's identity, as JSON."""

# Ranks compute on local files. They inherit only the variables that computing needs, so that they
# see no service's secret and no process-group variable (RANK, ...) of an outer job.
_INHERITED = re.compile(
    r"""
    PATH|HOME|USER|LOGNAME|SHELL|TZ|LANG|LANGUAGE|LC_.*|TMPDIR|TMP|TEMP|XDG_CACHE_HOME|VIRTUAL_ENV
    |PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD|MALLOC_.*
    |CC|CXX|CPATH|LIBRARY_PATH|MAX_JOBS  # DeepSpeed compiles kernels
    |(OMP|GOMP|KMP|MKL|OPENBLAS|ATEN|THP)_.*
    |(TORCH|PYTORCH|TORCHINDUCTOR|TRITON|DS|DEEPSPEED)_.*
    |(CUDA|CUBLAS|CUDNN|NVIDIA|NVTE|ROCM|ROCR|HIP|HSA)_.*
    |(NCCL|RCCL|GLOO|UCX|FI)_.*
    |HF_(HOME|HUB_CACHE|DATASETS_CACHE|MODULES_CACHE|HUB_OFFLINE|DATASETS_OFFLINE)
    |TRANSFORMERS_(OFFLINE|VERBOSITY)|TOKENIZERS_PARALLELISM
    |DYNOLAB_(HOME|REWARD_MODULES|GRACE_SECONDS)
    |DYNOLAB_(UP|TEST|TEST_HOST)  # marks for finding processes
    """,
    re.VERBOSE,
)
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_REQUEST_BYTES = 256  # more than struct ifreq of linux/if.h
_ADDRESS = slice(20, 24)  # of struct ifreq: sin_addr of the interface's IPv4 address


class LocalJob(BaseModel):
    """One host's part of a job.

    `ranks` counts this host's ranks; `host` is its number among `hosts`. If there are several,
    their torchruns meet at `endpoint` (host:port, served by host 0), and the others reach this one
    at `address`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    module: str
    job: Path
    logs: Path
    ranks: int = Field(ge=1)
    host: int = Field(0, ge=0)
    hosts: int = Field(1, ge=1)
    endpoint: str | None = None
    address: str = "127.0.0.1"

    @property
    def log(self) -> Path:
        """Where this host's torchrun writes."""
        return self.logs / ("torchrun.log" if self.host == 0 else f"torchrun-{self.host}.log")


class RankEnd(BaseModel):
    """How a failed rank ended; `rank` None is torchrun itself.

    `order` sorts the cause of a failure first. `group` 0: processes that ended without a record
    (killed, crashed, `os._exit`). 1: recorded exceptions, which may be their consequences, by time.
    2: ranks that a communication library aborted (SIGABRT). 3: ranks that torchrun ended (SIGTERM,
    later SIGKILL). 4: a torchrun that was not killed. `time`: unix seconds by the host's clock.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    rank: int | None
    exit_code: int
    group: int
    time: float
    last_lines: list[str]
    reason: str | None = None

    @property
    def order(self) -> tuple[int, float, int]:
        """Causes before consequences."""
        return self.group, self.time, -1 if self.rank is None else self.rank

    def error(self) -> RankFailed:
        """The exception to raise if this end is the cause."""
        return RankFailed(self.rank, self.exit_code, self.last_lines, self.reason)


@dataclass(frozen=True)
class Running:
    """A running local job; `failures` is its private folder of failure records."""

    local_job: LocalJob
    agent: Process
    failures: Path

    def failure(self) -> RankEnd | None:
        """The first failure on this host; None while torchrun runs, or if no rank failed."""
        code = self.agent.poll()
        if not code:
            return None
        ends = rank_ends(self.failures, self.local_job.logs)
        last = last_lines(self.local_job.log)
        # A killed torchrun is a cause; an exception in it is the consequence of lost connections.
        group = 0 if code < 0 else 4
        torchrun = RankEnd(rank=None, exit_code=code, group=group, time=0, last_lines=last)
        return min(ends, key=lambda end: end.order, default=torchrun)


@contextmanager
def running(local_job: LocalJob, environment: Mapping[str, str]) -> Iterator[Running]:
    """Start a local job's ranks; the end of the block ends them, whatever happens in it.

    On a host with GPUs each rank gets one of its own, once enough of them are free. `environment`:
    variables for the ranks; they override inherited ones (`rank_environment`).
    """
    devices = host_devices({**os.environ, **environment})
    # Next to the job file: if this process is killed, the folder is removed with the work folder.
    with (
        gpu_lent_to_ranks(),
        tempfile.TemporaryDirectory(prefix="dynolab-ranks-", dir=local_job.job.parent) as folder,
        ExitStack() as holding,
    ):
        held = holding.enter_context(hold_devices(local_job.ranks, devices)) if devices else {}
        failures, job_id = Path(folder), uuid.uuid4().hex
        visible = {VISIBLE: ",".join(held)} if held else {}
        try:
            agent = start_child(
                "tasks.runtime.launch.agent",
                [folder, local_job.model_dump_json()],
                environment=rank_environment(
                    {**environment, **visible}, local_job, failures, job_id
                ),
                log=local_job.log,
                pass_fds=held.values(),
            )
            try:
                yield Running(local_job, agent, failures)
            finally:
                stop_group(agent, _GRACE_SECONDS)
        finally:
            kill_marked(f"{_JOB_VARIABLE}={job_id}")


def rank_environment(
    additions: Mapping[str, str], local_job: LocalJob, private: Path, job_id: str
) -> dict[str, str]:
    """The ranks' environment: inherited variables that computing needs, defaults, `additions`."""
    inherited = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    defaults = {
        "OMP_NUM_THREADS": str(max(1, (cores or 1) // local_job.ranks)),
        # A private folder: a killed build leaves a lock on which later jobs would hang silently.
        "TORCH_EXTENSIONS_DIR": str(private / "torch_extensions"),
    }
    if local_job.hosts == 1:
        defaults[MEETING] = str(private / "ranks")
        defaults[SECRET] = secrets.token_hex(32)
        defaults["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun opens a port for it
    # By default gloo listens at the address of the host's name, and NCCL at a network's: a single
    # host's ranks should not be exposed to one.
    if interface := interface_of(local_job.address):
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            chosen = os.environ.get(variable) if local_job.hosts > 1 else None
            defaults[variable] = chosen or interface
    owner = json.dumps(this_process())
    environment = {
        **COMPUTING,
        **inherited,
        **defaults,
        **additions,
        _JOB_VARIABLE: job_id,
        OWNER_VARIABLE: owner,
    }
    if "DS_ACCELERATOR" not in environment and not gpus_visible(environment):
        environment["DS_ACCELERATOR"] = "cpu"
    return environment


def interface_of(address: str) -> str | None:
    """Name of the network interface that has this IPv4 address, or None."""
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_REQUEST_BYTES}s", name.encode())
            with suppress(OSError):  # the interface has no IPv4 address
                if fcntl.ioctl(probe, _SIOCGIFADDR, request)[_ADDRESS] == wanted:
                    return name
    return None


def rank_ends(failures: Path, logs: Path) -> list[RankEnd]:
    """The failures on this host, from torchrun's list and the ranks' own records."""
    ends = _read(failures / "torchrun.json", dict[int, tuple[int, float]]) or {}
    records = {
        int(file.stem[5:]): record
        for file in failures.glob("rank-*.json")
        if file.stem[5:].isdecimal() and (record := _read(file, _Record))
    }
    first_second = min((second for _, second in ends.values()), default=0)
    bad_ends = []
    for rank in sorted(ends.keys() | records.keys()):
        lines, record = last_lines(logs / f"rank-{rank}.log"), records.get(rank)
        if record:
            end = RankEnd(
                rank=rank,
                exit_code=record.exit_code,
                group=1,
                time=record.time,
                last_lines=lines,
                reason=record.reason,
            )
        else:
            code, second = ends[rank]
            was_ended = code == -signal.SIGTERM or second > first_second + 1
            end = RankEnd(
                rank=rank,
                exit_code=code,
                group=3 if was_ended else 2 if code == -signal.SIGABRT else 0,
                time=second,
                last_lines=lines,
            )
        bad_ends.append(end)
    return bad_ends


class _Record(BaseModel):
    """A rank's record of the exception that ended it."""

    exit_code: int
    time: float
    reason: str | None = None


def _read(file: Path, kind: type[Parsed]) -> Parsed | None:
    """Parse a small JSON file; None if it is missing or its writer was killed while writing."""
    try:
        return TypeAdapter(kind).validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


Parsed = TypeVar("Parsed")
