"""Ranks read only what ranks of the same job sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch.distributed as dist

from dynolab import distributed
from dynolab.errors import DynolabError
from dynolab.rank_authentication import MEETING, SECRET, sealed, unsealed
from dynolab.training import deepspeed_engine, loop
from dynolab.training.job import TrainJob
from models import language
from tasks.ranks.train import run

STRANGER = """
import os, sys
from datetime import timedelta
import torch.distributed as dist

class Evil:
    def __reduce__(self):
        return os.mkdir, (sys.argv[2],)

store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group(
    "gloo", store=store, rank=1, world_size=2, timeout=timedelta(seconds=60)
)
try:
    dist.all_gather_object([None, None], Evil())
except Exception:
    pass  # what the others sent is no pickle
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process in the place of rank 1, where this is rank 0; the folder that its pickle makes."""
    file = tmp_path / "ranks #1?"  # a folder may have any name
    monkeypatch.setenv(MEETING, str(file))
    monkeypatch.setenv(SECRET, "a secret")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    made = tmp_path / "made"
    environment = {name: value for name, value in os.environ.items() if name != SECRET}
    command = [sys.executable, "-c", STRANGER, str(file), str(made)]
    process = subprocess.Popen(command, env=environment)
    distributed.join()
    try:
        yield made
    finally:
        dist.destroy_process_group()
        process.kill()
        process.wait()


def test_a_stranger_in_a_rank_s_place_runs_no_code(stranger: Path) -> None:
    with pytest.raises(DynolabError, match="rank 1 was not sent by a rank of this job"):
        distributed.gather({"mine": 1})
    assert not stranger.exists()


def test_only_what_was_sealed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "a secret")
    data = sealed(b"content", rank=1, number=2)
    assert unsealed(data, rank=1, number=2) == b"content"
    for changed, rank, number in (
        (data, 0, 2),
        (data, 1, 3),
        (data + b".", 1, 2),
        (b"content", 1, 2),
        (b"", 1, 2),
    ):
        with pytest.raises(DynolabError, match="not sent by a rank of this job"):
            unsealed(changed, rank, number)
    monkeypatch.setenv(SECRET, "another")
    with pytest.raises(DynolabError):
        unsealed(data, rank=1, number=2)


def test_a_rank_that_has_trained_leaves_its_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A group that is not left can abort its process at exit, once the training is done."""
    for name, value in ((MEETING, str(tmp_path / "ranks")), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    joined = []
    monkeypatch.setattr(deepspeed_engine, "init_ranks", distributed.join)
    monkeypatch.setattr(language, "load_tokenizer", lambda source: None)
    monkeypatch.setattr(language, "load_language_model", lambda source, **settings: None)
    monkeypatch.setattr(loop, "train", lambda *given: joined.append(dist.is_initialized()))
    engine = SimpleNamespace(kind="deepspeed", attention="sdpa")
    config = SimpleNamespace(engine=engine, ledger=None)
    run(cast(TrainJob, SimpleNamespace(config=config, model="model")))
    assert joined == [True]
    assert not dist.is_initialized()
    distributed.leave()  # of no group: nothing to do
