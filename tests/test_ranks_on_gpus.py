"""What ranks do first on GPUs, with torch's own calls replaced by notes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dynolab import distributed
from dynolab.distributed import MEETING
from dynolab.errors import ConfigError
from dynolab.training.config import OptimizerConfig
from dynolab.training.deepspeed_engine import DeepSpeedEngine
from dynolab.training.engine import build_optimizer


def test_a_rank_takes_its_gpu_before_it_joins_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[str, Any]] = []
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(MEETING, raising=False)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("set", device)))
    monkeypatch.setattr(
        dist, "init_process_group", lambda **options: calls.append(("join", options))
    )
    distributed.join()
    (first, device), (second, options) = calls
    assert (first, second) == ("set", "join")
    assert device == options["device_id"] == torch.device("cuda", 1)
    assert options["backend"] == "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(("name", "moves"), [("adamw", True), ("rmsprop", False)])
def test_a_fused_optimizer_counts_steps_where_its_weights_are(
    name: str, moves: bool, tmp_path: Path
) -> None:
    """The CPU is the device on which states are written, `meta` the one on which they are read."""

    def engine(device: str) -> tuple[DeepSpeedEngine, torch.optim.Optimizer]:
        weights = torch.nn.Parameter(torch.ones(3, device=device))
        optimizer = build_optimizer(OptimizerConfig.model_validate({"name": name}), [weights])
        made = object.__new__(DeepSpeedEngine)
        made.logits = SimpleNamespace(basic_optimizer=optimizer, optimizer=optimizer)
        made._named, made._stage = {"w": weights}, 0
        return made, optimizer

    written, optimizer = engine("cpu")
    written._named["w"].grad = torch.ones(3)
    optimizer.step()
    written.save(tmp_path)
    read, optimizer = engine("meta")
    read._named["w"].data = torch.ones(4, device="meta")
    with pytest.raises(ConfigError, match=r"resume_from = .*lacks 1 entries of w \(master\)"):
        read.load(tmp_path)
    read._named["w"].data = torch.ones(3, device="meta")
    read.load(tmp_path)
    (state,) = optimizer.state.values()
    assert (state["step"].device.type == "meta") is moves
    assert all(value.device.type == "meta" for key, value in state.items() if key != "step")
