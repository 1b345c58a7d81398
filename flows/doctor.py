"""Checks a machine: what Dynolab needs, what is there, and what to do about the rest."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dynolab import __version__
from dynolab.errors import DynolabError
from dynolab.store import git_revision
from tasks.runtime.open_platform import open_store
from tasks.runtime.servers.standing import running_services
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings

State = Literal["ok", "note", "wrong"]
LITTLE_DISK = 5 * 2**30  # bytes
EXTRAS = {
    "deepspeed": "trainings on several ranks (engine.kind: deepspeed)",
    "datasets": "data sets of the Hub and Parquet files",
    "peft": "LoRA",
    "plotly": "pages and figures",
    "jinja2": "pages",
    "dash": "the page of dynolab explore",
    "PIL": "pictures (pip install pillow)",
    "sklearn": "the bundled digits (pip install scikit-learn)",
    "trl": "TRL's trainers with ProbeCallback and ForceCallback",
    "openai": "judges and writers behind an endpoint",
}
"""Module → what it is for."""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked; `wrong` keeps commands from running."""

    name: str
    state: State
    text: str


# A process of its own: it takes a second, in which the rest is checked, and a torch that its
# machine cannot run may end it by a signal. Without a search for garbage it is faster.
TORCH = """
import gc, json
gc.disable()
import torch
gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
names = [torch.cuda.get_device_name(number) for number in gpus]
print(json.dumps([torch.__version__, names, torch.get_num_threads()]))
"""


def examine() -> Iterator[Finding]:
    """Checks the machine, from what everything needs to what some commands need."""
    with subprocess.Popen(
        [sys.executable, "-c", TORCH], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as torch:
        revision = git_revision() or "unknown revision"
        yield Finding("dynolab", "ok", f"{__version__}, code {revision[:12]}")
        yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()}")
        yield from _home()
        for module, use in EXTRAS.items():
            if importlib.util.find_spec(module) is None:
                yield Finding(module, "note", f"is not installed; it is for {use}")
        said, errors = torch.communicate()
    yield from _torch(said, errors)


def _torch(said: str, errors: str) -> Iterator[Finding]:
    """What the process of `TORCH` said."""
    if not said:
        reason = errors.strip().rpartition("\n")[2] or "it ended by a signal"
        yield Finding("torch", "wrong", f"cannot be imported: {reason}; install it again")
        return
    version, gpus, threads = json.loads(said)
    if gpus:
        yield Finding("torch", "ok", f"{version}, {', '.join(gpus)}")
        if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
            yield Finding("TF32", "wrong", "forces need exact float32; unset NVIDIA_TF32_OVERRIDE")
        return
    yield Finding("torch", "ok", f"{version} on the CPU, {threads} threads")
    if Path("/proc/driver/nvidia").exists():
        yield Finding("GPU", "note", "has a driver that torch cannot use; update one of the two")


def _home() -> Iterator[Finding]:
    try:
        settings = Settings.from_environment()
        own_folder(settings.home)
        existing = next(path for path in (settings.home, *settings.home.parents) if path.exists())
        if not os.access(existing, os.W_OK):
            yield Finding("home", "wrong", f"{existing} cannot be written; set DYNOLAB_HOME")
            return
        free = shutil.disk_usage(existing).free
        state: State = "note" if free < LITTLE_DISK else "ok"
        yield Finding("home", state, f"{settings.home}, {free / 2**30:.0f} GiB free")
    except DynolabError as error:
        about_store = getattr(error, "field", "").startswith("DYNOLAB_STORE")
        yield Finding("store" if about_store else "home", "wrong", str(error))
        return
    try:
        store = open_store(settings)
        store.check_writable()
        stages = store.files.children("stages")
        results = sum(len(store.files.children(f"stages/{stage}")) for stage in stages)
        yield Finding("store", "ok", f"{store.files.url}, {results} results")
    except DynolabError as error:
        yield Finding("store", "wrong", str(error))
    servers = ", ".join(
        f"{name} at {address.url}" for name, address in running_services(settings.home).items()
    )
    yield Finding("servers", "ok", servers or "none runs; commands start their own")
