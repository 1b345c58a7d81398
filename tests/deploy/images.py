"""Builds the images of the Compose file and runs commands in them, without a registry or an engine.

`buildah` builds by the Dockerfiles as they stand. What they start from is Debian's own Python of
the same version, made by `debootstrap` under the official image's name. Commands run in a
container's file system, as its user, on this machine's network (`--isolation=chroot`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.composed import FILE, services
from tests.flows.lab import ROOT

PROGRAMS = ("buildah", "debootstrap")
PACKAGES = "python3,python3-venv,ca-certificates"
_FROM_REGISTRY = re.compile(r"^FROM (\w\S*:\d\S*)", re.MULTILINE)
_PATH = re.compile(r"(?<!\S)(file://)?(/\S+)")


def missing() -> str | None:
    """Why images cannot be built here; None if they can."""
    if absent := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"not installed: {', '.join(absent)}"
    return None if os.geteuid() == 0 else "debootstrap needs root"


def built_images() -> dict[str, dict[str, Any]]:
    """Image → what Compose builds it from, without the one whose torch is CUDA's."""
    builds = {
        service["image"].split(":")[0]: service["build"]
        for service in services().values()
        if "build" in service
    }
    return {name: build for name, build in builds.items() if not name.endswith("gpu")}


class Images:
    """The images, in a storage of their own under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pip = [*self._volumes_of_pip()]

    def buildah(self, command: str, *words: str) -> str:
        """What a command of `buildah` prints."""
        ran = subprocess.run(self.words(command, *words), cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
        return ran.stdout.strip()

    def words(self, command: str, *words: str) -> list[str]:
        storage = [f"--root={self.folder / 'storage'}", f"--runroot={self.folder / 'run'}"]
        return ["buildah", *storage, command, *words]

    def make_bases(self) -> None:
        """What the Dockerfiles start from, under the names that they give."""
        root = self.folder / "debian"
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)],
            check=True,
            capture_output=True,
        )
        (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        container = self.buildah("from", "scratch")
        self.buildah("copy", container, str(root), "/")
        shutil.rmtree(root)
        self.buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin", container)
        for name in self._bases():
            self.buildah("commit", "--quiet", container, f"docker.io/library/{name}")
        self.buildah("rm", container)

    def build(self, name: str, build: Mapping[str, Any]) -> None:
        """As Compose builds it."""
        arguments = [f"--build-arg={key}={value}" for key, value in build.get("args", {}).items()]
        self.buildah(
            "build",
            "--isolation=chroot",
            "--network=host",
            "--quiet",
            *arguments,
            *self._pip,
            f"--file={build['dockerfile']}",
            f"--tag={name}",
            str((FILE.parent / build["context"]).resolve()),
        )

    def megabytes(self, name: str) -> float:
        """Size of an image with what it starts from, in 10⁶ bytes, its layers not compressed."""
        (image,) = json.loads(self.buildah("images", "--json", name))
        number, unit = image["size"].split()
        return float(number) * {"MB": 1.0, "GB": 1e3}[unit]

    def container(self, image: str) -> str:
        """A new container of an image."""
        return self.buildah("from", image)

    def command(
        self,
        container: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        volumes: Mapping[Path, str],
    ) -> list[str]:
        """What runs `words` in a container."""
        return self.words(
            "run",
            "--isolation=chroot",
            "--cap-drop=ALL",
            *(f"--env={key}={value}" for key, value in environment.items()),
            *(f"--volume={place}:{inside}" for place, inside in volumes.items()),
            container,
            "--",
            *words,
        )

    def _bases(self) -> set[str]:
        files = {ROOT / build["dockerfile"] for build in built_images().values()}
        return {name for file in files for name in _FROM_REGISTRY.findall(file.read_text())}

    def _volumes_of_pip(self) -> Iterator[str]:
        """This machine's settings of pip, and the folders and files that they name."""
        listed = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True
        )
        settings = dict(re.findall(r"^[\w:]+?\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
        file = self.folder / "pip.conf"
        lines = [f"{key} = {value}" for key, value in ({"retries": "1"} | settings).items()]
        file.write_text("\n".join(["[global]", *lines, ""]))
        found = {path for value in settings.values() for path in _PATH.findall(value)}
        # The pages of an index link to files beside them.
        places = {Path(path).parent if is_index else Path(path) for is_index, path in found}
        for place in sorted(place for place in places if place.exists()):
            yield f"--volume={place}:{place}:ro"
        yield f"--volume={file}:/etc/pip.conf:ro"
