"""Rows are read token by token as TRL's data sets hold them; the benchmark tries all shapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fidelity.reading import Oracle, ours, outcomes, quiet
from tests.fidelity.row_shapes import CHAT, TEXT, texts
from tests.fidelity.tokenizers import CHATS, TEMPLATES, chat_tokenizer, text_tokenizer


@pytest.mark.parametrize("template", ["gemma3", "qwen3", "no_generation_prompt"])
def test_messages(template: str) -> None:
    found = outcomes([template], [])
    assert len(found) == len(CHAT)
    assert not [outcome for outcome in found if outcome.what == "different"]
    # Refused are only rows that the template rejects in TRL, too.
    assert not [outcome for outcome in found if "TRL: reads it" in outcome.detail]


@pytest.mark.parametrize("kind", ["bytes_bos_eos", "pieces_bos"])
def test_texts(kind: str) -> None:
    found = outcomes([], [kind])
    assert [outcome.what for outcome in found] == ["same"] * len(TEXT)


def test_one_blank_is_a_difference(tmp_path: Path) -> None:
    tokenizer = text_tokenizer("bytes", tmp_path)
    with quiet():
        trained = Oracle(tokenizer, tmp_path).sides([texts("Why?", " So.", " No.")] * 2, None)
    assert ours([texts("Why?", " So.", " No.")] * 2, tokenizer, None, tmp_path) == trained
    assert ours([texts("Why?", "So.", " No.")] * 2, tokenizer, None, tmp_path) != trained


def test_every_template_has_a_tokenizer_that_ends_turns(tmp_path: Path) -> None:
    assert {file.stem for file in TEMPLATES.glob("*.jinja")} == set(CHATS)
    for template in ("gemma1", "llama3", "gpt_oss"):
        tokenizer = chat_tokenizer(template, tmp_path)
        text = str(
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
