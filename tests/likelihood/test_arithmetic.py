"""How torch computes while a training runs on a GPU, and before and after."""

from __future__ import annotations

import pytest
import torch

from dynolab.likelihood.arithmetic import reproducible


def settings() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
    )


def test_a_gpu_adds_in_a_fixed_order_until_training_ends() -> None:
    before = settings()
    with pytest.raises(KeyError), reproducible(torch.device("cuda", 0)):
        assert settings() == (True, True, False, False)
        raise KeyError
    assert settings() == before


def test_a_cpu_computes_as_ever() -> None:
    before = settings()
    with reproducible(torch.device("cpu")):
        assert settings() == before
