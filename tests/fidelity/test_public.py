"""Files in the columns of public data sets are read as the pairs that they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from tests.fidelity.public import SETS, difference
from tests.fidelity.tokenizers import chat_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    return chat_tokenizer("chatml", tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("name", SETS)
def test_public_columns(name: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    assert difference(SETS[name], tokenizer, tmp_path) == ""
