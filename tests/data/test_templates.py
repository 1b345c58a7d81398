"""Chat templates are the model's: rows do not choose them, and they end."""

from __future__ import annotations

import threading
import time
from types import MappingProxyType
from typing import Any

import pytest

from dynolab.data import chat
from dynolab.data.chat import Conversation, template_writer, time_limit
from dynolab.errors import ConfigError
from tests.training.small import make_tokenizer

TURN = {"role": "user", "content": "w1"}
ANSWER = {"role": "assistant", "content": "w2"}
TEMPLATE = "{% for message in messages %}{{ mark }}{{ message.content }}{% endfor %}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def written(options: Any = MappingProxyType({}), template: str = TEMPLATE) -> str:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return template_writer(tokenizer, "model")(
        Conversation([TURN], [[ANSWER]], options=options), "row 0"
    ).prompt


@pytest.mark.parametrize(
    "name",
    [
        "chat_template",
        "tokenize",
        "messages",
        "conversation",
        "continue_final_message",
        "bos_token",
    ],
)
def test_rows_set_what_the_template_reads_and_no_argument_of_the_renderer(name: str) -> None:
    assert written({"mark": "*"}) == "*w1"
    with pytest.raises(ConfigError, match=rf"column chat_template_kwargs = \['{name}'\]: are the"):
        written({name: "x", "mark": "*"})


def test_a_template_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "RENDERING_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"row 0 = '0.2 s': the chat template of model takes"):
        written(template=LOOPS + TEMPLATE)
    assert time.monotonic() - began < 5


def test_the_first_row_without_end_ends_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dynolab.data.sources.readers import pairs

    tokenizer = make_tokenizer()
    tokenizer.chat_template = LOOPS + TEMPLATE
    monkeypatch.setattr(chat, "RENDERING_SECONDS", 0.1)
    records = [{"prompt": [TURN], "chosen": [ANSWER], "rejected": [ANSWER]}] * 1_000
    with pytest.raises(ConfigError, match=r"rows row 0 = '0\.1 s'"):
        list(pairs(records, "rows", template_writer(tokenizer, "model")))


def test_a_limit_holds_on_any_thread_and_for_its_block_alone() -> None:
    ends = []

    def work() -> None:
        try:
            with time_limit(0.1):
                while True:
                    time.sleep(0)
        except TimeoutError:
            ends.append("ended")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert ends == ["ended"]
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # nothing comes after the block
