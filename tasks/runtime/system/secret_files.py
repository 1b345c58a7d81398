"""Keys, tokens and the home folder, readable by their owner alone; texts that may hold one."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from dynolab.errors import ConfigError

HOME = "DYNOLAB_HOME"
KEY = "DYNOLAB_KEY"
TOKEN = "DYNOLAB_TOKEN"
PROOF_PATH = "/dynolab-home"
"""Where a server answers `?ask=…` with its `proof` of the home's token."""

_KEY_BYTES = 32
_TOKEN_LENGTH = 32
_WORD = "(?:pass(?:word|wd|phrase)?|pwd|secret|token|key|credentials?|auth|login|sig(?:nature)?)"
_SECRET_NAME = re.compile(f"(?:^|_){_WORD}s?(?:_|$)", re.IGNORECASE)
# A login before the host (//user:password@, or user:password@ alone); any query or parameter of a
# URL, since servers name their passwords differently; or a setting with the name of a secret
# (`host=… password=…`).
_SECRET = re.compile(rf"//[^/\s]*@|\w:[^/\s]+@|://\S*[?;#]|{_WORD}[\"']?\s*[=:]", re.IGNORECASE)


def holds_secret(text: str, name: str = "") -> bool:
    """Whether a text may contain a login, password or key; `name`: the variable that holds it."""
    return bool(_SECRET_NAME.search(name) or _SECRET.search(text))


def own_folder(folder: Path) -> Path:
    """Create a folder that only its owner may enter, or check an existing one; returns the folder.

    An existing folder keeps its mode. A group may have permission to pass through.

    **Raises** `ConfigError` for a folder of another user, and for one that others may read or
    change: whoever put something into it before could run commands as this user.
    """
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
        return folder
    stats = folder.stat()
    if stats.st_uid != os.geteuid():
        raise ConfigError(
            HOME, str(folder), "belongs to another user; name a folder that does not exist yet"
        )
    if stats.st_mode & 0o067:  # the group may pass (x); others nothing
        raise ConfigError(
            HOME,
            str(folder),
            f"is open to other users (mode {stat.S_IMODE(stats.st_mode):o}); name a folder that "
            f"does not exist yet, or, if nobody else has used this one: chmod 700 {folder}",
        )
    return folder


def secret_in(name: str, file: Path) -> str:
    """The random secret in `file`, in hex; created once, even if several processes try.

    **Arguments:** `name`: of the setting, for error messages.

    **Raises** `ConfigError` for a file of another user, and for one that others may read.
    """
    if not file.exists():
        own_folder(file.parent)
        # Written aside and linked: a file that another process has put there meanwhile stays.
        part = file.with_name(f"{file.name}.{uuid4().hex}.part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secrets.token_hex(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    stats = file.stat()
    if stats.st_uid != os.geteuid() or not stat.S_ISREG(stats.st_mode):
        raise ConfigError(
            name, "…", f"{file} is not a file of this user; delete it, and a new one is created"
        )
    if stats.st_mode & 0o077:
        raise ConfigError(
            name,
            "…",
            f"other users may read {file} (mode {stat.S_IMODE(stats.st_mode):o}); delete it, and a "
            f"new one is created, or, if nobody has read it: chmod 600 {file}",
        )
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
    return _key(secret_in(KEY, file), f"is not set, and {file} holds no key: delete that file")


def check_key(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` for an invalid DYNOLAB_KEY, before anything is signed with it."""
    if environment.get(KEY):
        signing_key(Path(), environment)


def login_token(home: Path) -> str:
    """The token that clients of a home's servers must present."""
    file = home / "token"
    return check_token(secret_in(TOKEN, file), f"; delete {file}, and a new one is created")


def check_token(text: str, remedy: str = " (openssl rand -hex 32)") -> str:
    """Return a token of 32 or more letters and digits, which a cookie can hold.

    **Raises** `ConfigError` otherwise, without showing any part of it.
    """
    if len(text) < _TOKEN_LENGTH or not (text.isascii() and text.isalnum()):
        raise ConfigError(TOKEN, "…", f"give at least 32 letters and digits{remedy}")
    return text


def proof(token: str, purpose: str, text: str) -> str:
    """What only a holder of the token can make of a text, and what does not tell the token."""
    return hmac.new(token.encode(), f"dynolab {purpose}\0{text}".encode(), sha256).hexdigest()


def new_session(token: str, seconds: float) -> str:
    """A login for so long, which a cookie can hold; it shows its end."""
    end_and_nonce = f"{time.time() + seconds:.0f}.{secrets.token_hex(8)}"
    return f"{end_and_nonce}.{proof(token, 'session', end_and_nonce)}"


def is_session(token: str, text: str) -> bool:
    """Whether a text is a login by `new_session` with the same token that has not ended."""
    end_and_nonce, _, signature = text.rpartition(".")
    if not hmac.compare_digest(signature.encode(), proof(token, "session", end_and_nonce).encode()):
        return False
    return time.time() < float(end_and_nonce.partition(".")[0])


def _key(text: str, remedy: str) -> bytes:
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) >= _KEY_BYTES:
            return key
    raise ConfigError(KEY, "…", remedy)
