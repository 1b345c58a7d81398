from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from dynolab.data.chat import (
    Conversation,
    messages_of,
    plain_writer,
    template_digest,
    template_writer,
)
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
    answers = [[{"role": "assistant", "content": word}] for word in ("w4", "w5 w6")]
    made = template_writer(tokenizer, "mine")(Conversation(ASKED, answers), "row 0")
    assert made.prompt == "<bos> user w1  assistant w2  user w3  assistant"
    assert made.answers == [" w4 ", " w5 w6 "]
    assert made.turn == (" ", " ")


def test_begin_of_sequence_stands_once(tokenizer: PreTrainedTokenizerFast) -> None:
    made = template_writer(tokenizer, "mine")(Conversation(ASKED), "row 0")
    ids = Encoder(tokenizer, 99, "error").prompt("row 0", made.prompt, 1, made.turn)
    assert ids is not None and ids.count(tokenizer.bos_token_id) == 1 and ids[0] == 1


EMPTY_THOUGHT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant> w8 {% endif %}"
)


def test_a_prompt_that_goes_on_otherwise_counts_as_far_as_its_tokens_do(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = EMPTY_THOUGHT
    made = template_writer(tokenizer, "mine")(
        Conversation(ASKED, [[{"role": "assistant", "content": "w4"}]]), "row 0"
    )
    assert made.prompt.endswith("w3 <assistant> w") and made.answers == ["4 "]


def test_a_missing_template_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chat_model = 'base'.*chat: plain"):
        template_writer(make_tokenizer(), "base")


def test_turns_that_a_template_refuses_are_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"row 7 = \['system'\].*no such role"):
        template_writer(tokenizer, "mine")(
            Conversation([{"role": "system", "content": "x"}]), "row 7"
        )


def test_a_template_runs_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    target = tmp_path / "written"
    tokenizer.chat_template = (
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}"
        f"{{{{ cycler.__init__.__globals__.os.system('touch {target}') }}}}"
    )
    with pytest.raises(ConfigError, match="row 0"):
        template_writer(tokenizer, "mine")(Conversation(ASKED), "row 0")
    assert not target.exists()


def test_what_messages_say_is_no_template(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = Conversation([{"role": "user", "content": "{{ 7 * 7 }}"}])
    text = template_writer(tokenizer, "mine")(asked, "r").prompt
    assert "{{ 7 * 7 }}" in text and "49" not in text


def test_plain_turns() -> None:
    system = [{"role": "system", "content": "be brief"}]
    answer = [{"role": "assistant", "content": "w4"}, *ASKED[2:], ASKED[1]]
    made = plain_writer(Conversation([*system, *ASKED], [answer]), "row 0")
    assert made.prompt == (
        "\n\nSystem: be brief\n\nHuman: w1\n\nAssistant: w2\n\nHuman: w3\n\nAssistant:"
    )
    assert made.answers == [" w4\n\nHuman: w3\n\nAssistant: w2"] and made.turn is None
    with pytest.raises(ConfigError, match=r"row 3 = \['tool'\]"):
        plain_writer(Conversation([{"role": "tool", "content": "x"}]), "row 3")


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
