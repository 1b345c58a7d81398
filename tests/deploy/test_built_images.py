"""Every image is built, and the platform runs from its images: a small study goes through them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import requests
from s3fs import S3FileSystem

from tests.deploy.backends import Backends, missing_programs
from tests.deploy.composed import services
from tests.deploy.images import Images, built_images, missing
from tests.deploy.started import HOME, IN_ORDER, TOKEN, Composed, started
from tests.flows.lab import SMALL, until

pytestmark = [
    pytest.mark.images,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}"),
    pytest.mark.timeout(3600),
]
USER = 1000
"""The images' user."""

LARGEST_MB = {"dynolab-server": 1500, "dynolab-worker-cpu": 3500}
FILE, STUDY = "builtin.yaml", SMALL.read_text()
STUDY_SECONDS = 900.0


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    folder = Path(tempfile.mkdtemp(prefix="dynolab-images-", dir="/var/tmp"))
    try:
        built = Images(folder)
        built.make_bases()
        for name, build in built_images().items():
            built.build(name, build)
        yield built
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_every_image_is_built_and_none_is_larger_than_it_should_be(images: Images) -> None:
    sizes = {name: images.megabytes(name) for name in built_images()}
    print(sizes)
    assert sizes.keys() == LARGEST_MB.keys()
    assert all(size <= LARGEST_MB[name] for name, size in sizes.items()), sizes


class InImages(Composed):
    """Services that run in containers of their own images."""

    def __init__(self, images: Images, folder: Path, backing: Backends, s3: str) -> None:
        super().__init__(folder, backing, s3)
        self.home.mkdir()
        shutil.chown(self.home, USER, USER)
        self.images = images
        self.containers: dict[str, str] = {}

    @property
    def folders(self) -> Mapping[str, str]:
        return {}

    def run(self, name: str, words: Sequence[str]) -> tuple[list[str], None]:
        """A service's command in its container."""
        if name not in self.containers:
            image = services()[name]["image"].split(":")[0]
            self.containers[name] = self.images.container(image)
        command = self.images.command(
            self.containers[name],
            [self.text(name, word) for word in words],
            self.environment(name),
            {self.home: HOME} if services()[name].get("volumes") else {},
        )
        return command, None


def test_a_study_goes_through_the_images(images: Images, s3_server: str) -> None:
    def kind(folder: Path, backing: Backends, s3: str) -> Composed:
        return InImages(images, folder, backing, s3)

    with started(s3_server, kind) as composed:
        for name in (*IN_ORDER, "worker-cpu-training"):
            composed.begin(name)
        api = f"http://127.0.0.1:{composed.prefect}/api"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        study = requests.get(f"{api}/deployments/name/study/a-study", headers=headers, timeout=30)
        made = requests.post(
            f"{api}/deployments/{study.json()['id']}/create_flow_run",
            headers=headers,
            json={"parameters": {"settings": {"study_file": FILE, "study_text": STUDY}}},
            timeout=30,
        )
        assert made.ok, made.text
        run = made.json()["id"]

        def end() -> str | None:
            answer = requests.get(f"{api}/flow_runs/{run}", headers=headers, timeout=30)
            state = answer.json()["state"]
            return state["type"] if state["type"] in ("COMPLETED", "FAILED", "CRASHED") else None

        logs = composed.log("worker-cpu-training")
        assert until(end, STUDY_SECONDS) == "COMPLETED", logs.read_text()[-3000:]
        store = S3FileSystem(endpoint_url=s3_server, key="tester", secret="secret")
        committed = store.glob(f"{composed.marker}/store/stages/*/*/COMMITTED")
        assert {"base", "sft", "preference", "report"} <= {name.split("/")[3] for name in committed}
