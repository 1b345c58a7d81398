"""Turns chat messages into one prompt that a response can follow."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.errors import ConfigError, reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Write = Callable[[Sequence[Message], str], str]
"""Turns messages into the prompt for the next answer; also takes their row's name, for errors."""

SECONDS = 10.0
"""CPU time that a chat template may use in total, on top of its allowance per text."""
_TURNS = {"system": "System", "user": "Human", "assistant": "Assistant"}
_FILES = ("chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json")


def template_writer(tokenizer: PreTrainedTokenizerBase, name: str) -> Write:
    """Returns a writer that applies the tokenizer's chat template.

    The text omits begin-of-sequence if the tokenizer adds it to every text itself.

    The template is foreign code: it runs in a process of its own, which ends if it runs forever or
    fills the memory.

    **Raises:** `ConfigError` for a tokenizer without a template. The writer raises one that names
    the row if the template rejects its messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_model",
            name,
            "its tokenizer has no chat template; name a chat-tuned model, or set data.chat: plain",
        )
    with reading("data.chat_model", name, "give the tokenizer that belongs to the model"):
        bos = str(tokenizer.bos_token or "")
        doubled = bool(bos) and list(tokenizer("a")["input_ids"])[:1] == [tokenizer.bos_token_id]
        template, tokens = tokenizer.get_chat_template(), dict(tokenizer.special_tokens_map)
    renderer = _Renderer(template, tokens)

    def write(messages: Sequence[Message], row: str) -> str:
        answer = renderer.render(messages)
        if "text" not in answer:
            raise ConfigError(
                row,
                [message["role"] for message in messages],
                f"the chat template of {name} rejects these turns: {answer['error']}",
            )
        return answer["text"].removeprefix(bos) if doubled else answer["text"]

    return write


class _Renderer:
    """A process of `dynolab.data.render`, started when the first text is rendered."""

    def __init__(self, template: object, tokens: Mapping[str, object]) -> None:
        header = {"template": template, "tokens": tokens, "seconds": SECONDS}
        self._header = json.dumps(header, default=str)
        self._process: subprocess.Popen[str] | None = None

    def render(self, messages: Sequence[Message]) -> dict[str, str]:
        """The `text` of the messages, or the template's `error`."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dynolab.data.render"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            weakref.finalize(self, _kill, self._process)
            self._send(self._header)
        self._send(
            json.dumps(
                [{k: v for k, v in message.items() if v is not None} for message in messages]
            )
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        code = self._process.wait()
        self._process = None
        if code == -signal.SIGXCPU:
            return {"error": "it exceeds its CPU time"}
        return {"error": f"its process ended with exit code {code}"}

    def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # `render` reports why it ended
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(BrokenPipeError):
        process.communicate()


def plain_writer(messages: Sequence[Message], row: str) -> str:
    """Writes messages as `\\n\\nHuman: … \\n\\nAssistant:`, the form of HH transcripts."""
    unknown = {str(message["role"]) for message in messages} - set(_TURNS)
    if unknown:
        raise ConfigError(row, sorted(unknown), f"roles must be among {', '.join(_TURNS)}")
    turns = [f"\n\n{_TURNS[message['role']]}: {message['content']}" for message in messages]
    return "".join([*turns, f"\n\n{_TURNS['assistant']}:"])


def messages_of(value: object, where: str) -> list[Message]:
    """Checks that a value is a list of messages, each with a role and a text as content."""
    good = isinstance(value, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in value
    )
    if not isinstance(value, list) or not value or not good:
        raise ConfigError(
            where, str(value)[:80], "must be a list of messages, each with role and content texts"
        )
    return value


def template_digest(folder: Path) -> str:
    """sha256 of the files that decide how a local tokenizer writes messages."""
    digest = hashlib.sha256()
    for name in _FILES:
        file = folder / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
