"""Keys, tokens and the home folder, readable by their owner alone; texts that may hold one."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dynolab.errors import ConfigError

KEY = "DYNOLAB_KEY"
TOKEN = "DYNOLAB_TOKEN"
_KEY_BYTES = 32
_TOKEN_LENGTH = 32
_WORD = "(?:pass(?:word|wd|phrase)?|pwd|secret|token|key|credentials?|auth|login|sig(?:nature)?)"
_SECRET_NAME = re.compile(f"(?:^|_){_WORD}s?(?:_|$)", re.IGNORECASE)
# A login before the host; any query or parameter of a URL, since servers name their passwords
# differently; or a setting with the name of a secret (`host=… password=…`).
_SECRET = re.compile(rf"//[^/\s]*@|\w:[^/\s]+@|://\S*[?;#]|{_WORD}[\"']?\s*[=:]", re.IGNORECASE)


def holds_secret(text: str, name: str = "") -> bool:
    """Whether a text may contain a login, password or key; `name`: the variable that holds it."""
    return bool(_SECRET_NAME.search(name) or _SECRET.search(text))


def own_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter, or close an existing one to others.

    A folder of another user (a container's volume) keeps its mode, and a group keeps permission to
    pass through. Returns the folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o067:
        with suppress(PermissionError):
            folder.chmod(0o700)
    return folder


def kept_secret(file: Path) -> str:
    """The random secret in `file`, in hex; created once, even if several processes try."""
    if not file.exists():
        own_folder(file.parent)
        part = file.with_name(f"{file.name}.{uuid4().hex}.part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    return file.read_text(encoding="utf-8").strip()


def signing_key(home: Path, environment: Mapping[str, str] = os.environ) -> bytes:
    """The key that signs resume states: DYNOLAB_KEY, or the home's.

    **Raises** `ConfigError` for an invalid key, without showing any part of it.
    """
    if text := environment.get(KEY):
        return _key(
            text, "is not a key: give at least 64 hexadecimal digits (openssl rand -hex 32)"
        )
    file = home / "key"
    return _key(kept_secret(file), f"is not set, and {file} holds no key: delete that file")


def check_key(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an invalid DYNOLAB_KEY, before anything is signed with it."""
    if environment.get(KEY):
        signing_key(Path(), environment)


def login_token(home: Path) -> str:
    """The token that clients of a home's servers must present."""
    file = home / "token"
    return check_token(kept_secret(file), f"; delete {file}, and a new one is created")


def check_token(text: str, remedy: str = " (openssl rand -hex 32)") -> str:
    """Return a token of 32 or more letters and digits, which a cookie can hold.

    **Raises** `ConfigError` otherwise, without showing any part of it.
    """
    if len(text) < _TOKEN_LENGTH or not (text.isascii() and text.isalnum()):
        raise ConfigError(TOKEN, "…", f"give at least 32 letters and digits{remedy}")
    return text


def _key(text: str, remedy: str) -> bytes:
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) >= _KEY_BYTES:
            return key
    raise ConfigError(KEY, "…", remedy)
