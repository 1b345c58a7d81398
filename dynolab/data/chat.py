"""Chat messages as one text: a prompt that a response follows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Write = Callable[[Sequence[Message], str], str]
"""Messages and the name of their row to the prompt that asks for the next answer."""

_TURNS = {"system": "System", "user": "Human", "assistant": "Assistant"}
_FILES = ("chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json")


def template_writer(tokenizer: PreTrainedTokenizerBase, name: str) -> Write:
    """Writes messages by the chat template that a tokenizer brings.

    The text has no begin-of-sequence where the tokenizer puts one before every text itself.

    **Raises:** `ConfigError` for a tokenizer without a template; its writer raises one that names
    the row where the template refuses messages.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_model", name,
            "its tokenizer has no chat template; name the model that was tuned to chat, or set "
            "data.chat: plain",
        )  # fmt: skip
    bos = str(tokenizer.bos_token or "")
    doubled = bool(bos) and list(tokenizer("a")["input_ids"])[:1] == [tokenizer.bos_token_id]

    def write(messages: Sequence[Message], row: str) -> str:
        from jinja2 import TemplateError

        try:
            text = tokenizer.apply_chat_template(
                [dict(one) for one in messages], tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise ConfigError(
                row, [one["role"] for one in messages],
                f"the chat template of {name} refuses these turns: {error}",
            ) from error  # fmt: skip
        return str(text).removeprefix(bos) if doubled else str(text)

    return write


def plain_writer(messages: Sequence[Message], row: str) -> str:
    """Writes messages as `\\n\\nHuman: … \\n\\nAssistant:`, the form of HH transcripts."""
    unknown = {str(one["role"]) for one in messages} - set(_TURNS)
    if unknown:
        raise ConfigError(row, sorted(unknown), f"roles must be among {', '.join(_TURNS)}")
    turns = [f"\n\n{_TURNS[one['role']]}: {one['content']}" for one in messages]
    return "".join([*turns, f"\n\n{_TURNS['assistant']}:"])


def messages_of(value: object, where: str) -> list[Message]:
    """A checked list of messages, each with a role and a text as content."""
    good = isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("role"), str)
        and isinstance(one.get("content"), str)
        for one in value
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
