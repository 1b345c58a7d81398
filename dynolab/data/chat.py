"""Chat messages as text: a prompt, and the answers that follow it."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynolab.data.rows import Turn, common_length
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """The messages of a row: those before its answers, and those of each answer.

    `tools` and `options` (`chat_template_kwargs`) are for the chat template.
    """

    prompt: Sequence[Message]
    answers: Sequence[Sequence[Message]] = ()
    tools: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Texts(NamedTuple):
    """What is written of a conversation; `turn`: see `dynolab.data.rows.Prompted`."""

    prompt: str
    answers: list[str]
    turn: Turn | None


Write = Callable[[Conversation, str], Texts]
"""Writes a conversation; also takes its row's name, for errors."""

NO_WRITER = "name the model whose chat template writes messages, or set data.chat: plain"
"""Remedy if data hold chat messages and no setting says how to turn them into text."""

_ROLES = {"system": "System", "user": "Human", "assistant": "Assistant"}
_FILES = ("chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json")
_MARK = "\ue000"


RENDERING_SECONDS = 5.0
"""Longest time that a template may take for one text. Loops within loops have no other end."""


def template_writer(tokenizer: PreTrainedTokenizerBase, name: str) -> Write:
    """Returns a writer that applies the tokenizer's chat template, as TRL does.

    The prompt is written with a generation prompt, then with each answer; an answer is what comes
    after their common beginning. Templates run in transformers' sandbox, with a limit of time.

    **Raises:** `ConfigError` for a tokenizer without a template. The writer raises one that names
    the row if the template rejects its messages, does not end, or if the row's options are
    arguments of the renderer, such as another template.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "data.chat_model",
            name,
            "its tokenizer has no chat template; name a chat-tuned model, or set data.chat: plain",
        )

    parameters = inspect.signature(tokenizer.apply_chat_template).parameters.values()
    reserved = {
        parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD
    }
    reserved |= {"messages", *tokenizer.special_tokens_map}

    def write(row: Conversation, where: str) -> Texts:
        clashing = sorted(reserved & row.options.keys())
        if clashing:
            raise ConfigError(
                f"{where}, column chat_template_kwargs",
                clashing,
                "are the renderer's or the model's own; a row may set only what the template reads",
            )

        def rendered(messages: Sequence[Message], *, ask: bool = False) -> str:
            try:
                with time_limit(RENDERING_SECONDS):
                    text = tokenizer.apply_chat_template(
                        [dict(message) for message in messages],
                        tools=row.tools,
                        add_generation_prompt=ask,
                        tokenize=False,
                        **row.options,
                    )
                    str(text).encode()  # raises for lone surrogates
            except TimeoutError as error:
                raise ConfigError(
                    where,
                    f"{RENDERING_SECONDS:g} s",
                    f"the chat template of {name} takes longer to write it; use another model's, "
                    "or set data.chat: plain",
                ) from error
            except Exception as error:
                roles = [message["role"] for message in messages]
                remedy = f"the chat template of {name} rejects these turns: "
                remedy += f"{type(error).__name__}: {error}"[:300]
                raise ConfigError(where, roles, remedy) from error
            return str(text)

        prompt_text = rendered(row.prompt, ask=True)
        texts = [rendered([*row.prompt, *answer]) for answer in row.answers]
        prompt = _common_prompt(tokenizer, prompt_text, texts, where, name)
        marked = rendered([*row.prompt, {"role": "assistant", "content": _MARK}])
        before, _, after = marked[len(prompt) :].partition(_MARK)
        turn = (before, after) if marked.startswith(prompt) and _MARK in marked else ("", "")
        return Texts(prompt, [text[len(prompt) :] for text in texts], turn)

    return write


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in the block once it takes longer, on any thread.

    Only between two instructions of Python: a single call of a C function is not ended.
    """
    lock, thread, ended = threading.Lock(), ctypes.c_ulong(threading.get_ident()), False

    def end() -> None:
        with lock:
            if not ended:
                error = ctypes.py_object(TimeoutError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        # An error that was raised on the last moment arrives in these lines, not after the block.
        with lock:
            ended = True
        timer.cancel()


def writer_of(tokenizer: PreTrainedTokenizerBase) -> Write:
    """The writer of a tokenizer's chat template, or of plain turns if it has none."""
    if getattr(tokenizer, "chat_template", None):
        return template_writer(tokenizer, tokenizer.name_or_path)
    return plain_writer


def _common_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt_text: str,
    texts: Sequence[str],
    where: str,
    name: str,
) -> str:
    """The prompt whose tokens begin all texts as far as those of the whole prompt do.

    Most templates begin a conversation with the very text of its prompt. Of a prompt that goes on
    differently (an empty thought, say) only the beginning counts.
    """
    if all(text.startswith(prompt_text) for text in texts):
        return prompt_text

    def shared(prompt: str) -> int:
        alone, *ids = tokenizer([prompt, *texts], add_special_tokens=False)["input_ids"]
        return min(common_length(alone, others) for others in ids)

    length, prompt = shared(prompt_text), prompt_text
    for text in texts:
        prompt = prompt[: common_length(prompt, text)]
    if shared(prompt) != length:
        ids = tokenizer(texts[0], add_special_tokens=False, return_offsets_mapping=True)
        prompt = texts[0][: ids["offset_mapping"][length - 1][1]] if length else ""
    if shared(prompt) != length:
        raise ConfigError(
            where,
            prompt_text[-80:],
            f"the chat template of {name} writes this prompt in another way before its answer, and "
            "their tokens cannot be told apart; use a template that writes both alike",
        )
    return prompt


def plain_writer(row: Conversation, where: str) -> Texts:
    """Writes messages as `\\n\\nHuman: … \\n\\nAssistant: …`, the form of HH transcripts."""

    def turns(messages: Sequence[Message]) -> str:
        unknown = {str(message["role"]) for message in messages} - set(_ROLES)
        if unknown:
            raise ConfigError(where, sorted(unknown), f"roles must be among {', '.join(_ROLES)}")
        if not all(isinstance(message.get("content"), str) for message in messages):
            raise ConfigError(where, "content without text", "data.chat: plain needs texts")
        return "".join(
            f"\n\n{_ROLES[message['role']]}: {message['content'].strip()}" for message in messages
        )

    opened = f"\n\n{_ROLES['assistant']}:"
    answers = [turns(answer).removeprefix(opened).rstrip() for answer in row.answers]
    return Texts(turns(row.prompt) + opened, answers, None)


def messages_of(value: object, where: str) -> list[Message]:
    """Checks that a value is a message, or a list of them, each with a role and a content.

    ShareGPT's `from` and `value` are read as role and content. A message with tool calls needs no
    content. Keys without a value are left out, as tables fill them in.
    """
    value = [value] if isinstance(value, Mapping) else value
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise ConfigError(
            where,
            str(value)[:80],
            "must be a list of messages, each with a role and a text as content (no images)",
        )
    return [
        {
            _NAMES.get(key, key): _SPEAKERS.get(item, item) if key == "from" else item
            for key, item in message.items()
            if item is not None or key == "content"
        }
        for message in value
    ]


_NAMES = {"from": "role", "value": "content"}
_SPEAKERS = {"human": "user", "gpt": "assistant", "function_call": "assistant"}


def is_messages(value: object) -> bool:
    """Whether a value looks like a message, or a list of them."""
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping)


def _is_message(message: object) -> bool:
    if not isinstance(message, Mapping):
        return False
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    parts = content if isinstance(content, list) else []
    texts = all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts)
    good = isinstance(content, str) or bool(parts and texts) or bool(message.get("tool_calls"))
    return isinstance(role, str) and good


def template_digest(folder: Path) -> str:
    """sha256 of the files that decide how a local tokenizer writes messages."""
    digest = hashlib.sha256()
    for name in _FILES:
        file = folder / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
