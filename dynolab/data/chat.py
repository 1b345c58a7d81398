"""Chat messages as one text: a prompt that a response follows."""

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
"""Messages and the name of their row to the prompt that asks for the next answer."""

SECONDS = 10.0
"""Of computing that a chat template may take in all, beside what each text has."""
_TURNS = {"system": "System", "user": "Human", "assistant": "Assistant"}
_FILES = ("chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json")


def template_writer(tokenizer: PreTrainedTokenizerBase, name: str) -> Write:
    """Writes messages by the chat template that a tokenizer brings.

    The text has no begin-of-sequence where the tokenizer puts one before every text itself.

    The template is others' code: it writes in a process of its own, which ends when it computes
    without end or fills the memory.

    **Raises:** `ConfigError` for a tokenizer without a template; its writer raises one that names
    the row where the template refuses messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_model",
            name,
            "its tokenizer has no chat template; name the model that was tuned to chat, or set "
            "data.chat: plain",
        )
    with reading("data.chat_model", name, "give the tokenizer that belongs to the model"):
        bos = str(tokenizer.bos_token or "")
        doubled = bool(bos) and list(tokenizer("a")["input_ids"])[:1] == [tokenizer.bos_token_id]
        template, tokens = tokenizer.get_chat_template(), dict(tokenizer.special_tokens_map)
    rendering = _Rendering(template, tokens)

    def write(messages: Sequence[Message], row: str) -> str:
        answer = rendering.answer(messages)
        if "text" not in answer:
            raise ConfigError(
                row,
                [message["role"] for message in messages],
                f"the chat template of {name} refuses these turns: {answer['error']}",
            )
        return answer["text"].removeprefix(bos) if doubled else answer["text"]

    return write


class _Rendering:
    """The process of `dynolab.data.render`, started for the first text."""

    def __init__(self, template: object, tokens: Mapping[str, object]) -> None:
        given = {"template": template, "tokens": tokens, "seconds": SECONDS}
        self._given = json.dumps(given, default=str)
        self._process: subprocess.Popen[str] | None = None

    def answer(self, messages: Sequence[Message]) -> dict[str, str]:
        """The `text` of the messages, or the `error` that refused them."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dynolab.data.render"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            weakref.finalize(self, _end, self._process)
            self._send(self._given)
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
            return {"error": "it computes without end"}
        return {"error": f"its process ended with exit code {code}"}

    def _send(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading its answer says why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def _end(process: subprocess.Popen[str]) -> None:
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
    """A checked list of messages, each with a role and a text as content."""
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
