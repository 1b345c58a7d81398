"""What a force map may take by default, and what fits into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from dynolab.forces.function.rules import Rule
from dynolab.forces.map import costs
from dynolab.forces.map.costs import LEAST_BYTES, factor_bytes, memory_for

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host with 40 GiB free; returns where its container states its limits."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n")
    monkeypatch.setattr(costs, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(costs, "_GROUP", tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return tmp_path


def test_a_map_takes_half_of_what_is_free(free: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory_for(CPU) == 20 * GIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert memory_for(CPU) == 5 * GIB
    assert memory_for(CPU, 2**20) == 2**20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * GIB, 80 * GIB))
    assert memory_for(torch.device("cuda", 0)) == 30 * GIB


@pytest.mark.parametrize(("limit", "expected"), [("max", 20), (str(10 * GIB), 4), ("0", 1)])
def test_a_container_s_limit_counts(free: Path, limit: str, expected: int) -> None:
    (free / "memory.max").write_text(limit)
    (free / "memory.current").write_text(str(5 * GIB))
    (free / "memory.stat").write_text(f"anon {GIB}\ninactive_file {3 * GIB}\n")
    assert memory_for(CPU) == expected * LEAST_BYTES


def test_answers_of_two_thousand_tokens_fit_beside_pythia_410m_on_80_gb() -> None:
    with torch.device("meta"):
        shape = GPTNeoXConfig(
            vocab_size=50_304,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        model = GPTNeoXForCausalLM(shape)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    rules = [
        Rule(m, "linear", f"{n}.weight", f"{n}.bias", head=m is model.lm_head)
        for n, m in linear.items()
    ]
    rules.append(Rule(model.gpt_neox.embed_in, "embedding", "embed_in.weight", None))
    room = 80 * 10**9 // 2 // 8  # of one span of tokens: half of what is free, an eighth of that
    assert factor_bytes(rules, (1, 2000), 4) < room
    assert factor_bytes(rules, (1, 2000), 4) > GIB // 8  # the least is not enough
