from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.rollouts.generator import SampleConfig, flat
from dynolab.rollouts.vllm_backend import VLLMGenerator
from models.language import load_tokenizer
from tests.training.small import make_files

INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(INSTALLED, reason="vllm is installed")
def test_without_vllm_the_message_says_so(tmp_path: Path) -> None:
    make_files(tmp_path)
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        VLLMGenerator(tmp_path / "model", load_tokenizer(tmp_path / "model"), 48)


@pytest.mark.skipif(not INSTALLED, reason="vllm is not installed")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="vllm needs a GPU")
def test_a_response_does_not_depend_on_what_is_drawn_beside_it(tmp_path: Path) -> None:
    make_files(tmp_path)
    generator = VLLMGenerator(tmp_path / "model", load_tokenizer(tmp_path / "model"), 48)
    config = SampleConfig(max_new_tokens=8)
    asked = [[1, 7, 9], [1, 12]]
    whole = generator.generate(asked, config, samples=3)
    assert generator.generate(asked[1:], config, samples=3, numbers=[1]) == whole[1:]
    assert all(len(one.logps) == len(one.response) <= 8 for one in flat(whole))
