from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dynolab.data import chat
from dynolab.data.chat import messages_of, plain_writer, template_digest, template_writer
from dynolab.data.encode import Encoder
from dynolab.errors import ConfigError
from models.language import load_tokenizer
from tests.training.small import make_tokenizer

TEMPLATE = """{{ bos_token }}{% for message in messages %}\
{% if message.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}\
 {{ message.role }} {{ message.content }} {% endfor %}{% if add_generation_prompt %}assistant\
{% endif %}"""
ASKED = [
    {"role": "user", "content": "w1"},
    {"role": "assistant", "content": "w2"},
    {"role": "user", "content": "w3"},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    made = make_tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(tmp_path / "chat")
    return load_tokenizer(tmp_path / "chat")


def test_a_template_writes_turns_and_asks_for_the_next(tokenizer: PreTrainedTokenizerFast) -> None:
    text = template_writer(tokenizer, "mine")(ASKED, "row 0")
    assert text.split() == ["user", "w1", "assistant", "w2", "user", "w3", "assistant"]


def test_begin_of_sequence_stands_once(tokenizer: PreTrainedTokenizerFast) -> None:
    text = template_writer(tokenizer, "mine")(ASKED, "row 0")
    ids = Encoder(tokenizer, 99, "error").prompt("row 0", text, 1)
    assert ids is not None and ids.count(tokenizer.bos_token_id) == 1 and ids[0] == 1
    bare = make_tokenizer()
    bare.backend_tokenizer.post_processor = None  # puts no begin-of-sequence itself
    bare.chat_template = TEMPLATE
    ids = Encoder(bare, 99, "error").prompt(
        "row 0", template_writer(bare, "mine")(ASKED, "row 0"), 1
    )
    assert ids is not None and ids.count(1) == 1 and ids[0] == 1


def test_a_missing_template_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chat_model = 'base'.*chat: plain"):
        template_writer(make_tokenizer(), "base")


def test_turns_that_a_template_refuses_are_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"row 7 = \['system'\].*no such role"):
        template_writer(tokenizer, "mine")([{"role": "system", "content": "x"}], "row 7")


def test_a_template_runs_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    target = tmp_path / "written"
    tokenizer.chat_template = (
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}"
        f"{{{{ cycler.__init__.__globals__.os.system('touch {target}') }}}}"
    )
    with pytest.raises(ConfigError, match="row 0"):
        template_writer(tokenizer, "mine")(ASKED, "row 0")
    assert not target.exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "CPU time",
        ),
        ("{% set number = 10 ** (10 ** (messages|length + 7)) %}", "exceeds its CPU time"),
        ("{{ 'a'.ljust(2 * 10 ** 9) }}", "MemoryError"),
        ("{{ 'a' * 2 * 10 ** 7 }}", "more than 16777216 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ '\\ud800' }}", ""),
    ],
)
def test_a_template_neither_hangs_nor_fills_the_memory_nor_raises_its_own(
    tokenizer: PreTrainedTokenizerFast, template: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=f"row 0 = .*chat template of mine rejects.*{message}"):
        template_writer(tokenizer, "mine")(ASKED, "row 0")


def test_what_messages_say_is_no_template(tokenizer: PreTrainedTokenizerFast) -> None:
    text = template_writer(tokenizer, "mine")([{"role": "user", "content": "{{ 7 * 7 }}"}], "r")
    assert "{{ 7 * 7 }}" in text and "49" not in text


def test_plain_turns() -> None:
    system = [{"role": "system", "content": "be brief"}]
    assert plain_writer([*system, *ASKED], "row 0") == (
        "\n\nSystem: be brief\n\nHuman: w1\n\nAssistant: w2\n\nHuman: w3\n\nAssistant:"
    )
    with pytest.raises(ConfigError, match=r"row 3 = \['tool'\]"):
        plain_writer([{"role": "tool", "content": "x"}], "row 3")


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        None,
        ["text"],
        [{"role": "user"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ],
)
def test_what_is_no_list_of_messages_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"row 5, column chosen.*list of messages"):
        messages_of(value, "row 5, column chosen")


def test_the_digest_follows_the_template(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    before = template_digest(tmp_path / "chat")
    shutil.copytree(tmp_path / "chat", tmp_path / "same")
    assert template_digest(tmp_path / "same") == before
    tokenizer.chat_template += " "
    tokenizer.save_pretrained(tmp_path / "chat")
    assert template_digest(tmp_path / "chat") != before
