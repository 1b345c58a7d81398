"""Key files and the home: created with permissions for their owner alone."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from dynolab.errors import ConfigError

KEY = "DYNOLAB_KEY"
TOKEN = "DYNOLAB_TOKEN"
_KEY_BYTES = 32
_TOKEN_LENGTH = 32
_WORD = "(?:pass(?:word|wd|phrase)?|pwd|secret|token|key|credentials?|auth|login|sig(?:nature)?)"
_SECRET_NAME = re.compile(f"(?:^|_){_WORD}s?(?:_|$)", re.IGNORECASE)
# A login before the host; any setting behind an address, whatever its server calls passwords; or
# a setting that sounds like one (`host=… password=…`).
_SECRET = re.compile(rf"//[^/\s]*@|\w:[^/\s]+@|://\S*[?;#]|{_WORD}[\"']?\s*[=:]", re.IGNORECASE)


def holds_secret(text: str, name: str = "") -> bool:
    """Whether a text may bring a login, password or key along; `name`: of the variable it fills."""
    return bool(_SECRET_NAME.search(name) or _SECRET.search(text))


def own_folder(folder: Path) -> Path:
    """Makes a folder that its owner alone may enter, or closes it to others; returns it.

    A folder of another user (a volume of a container) stays as its owner has it. A group that may
    only pass through stays: see `tasks.runtime.servers.postgres_redis`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o067:
        with suppress(PermissionError):
            folder.chmod(0o700)
    return folder


def write_private(file: Path, content: str) -> None:
    """Writes a file as a whole, readable by its owner alone."""
    _private_part(file, content).replace(file)


def kept_secret(file: Path) -> str:
    """A random secret in hex, made once: of those who come together one makes it for all."""
    if not file.exists():
        own_folder(file.parent)
        part = _private_part(file, secrets.token_hex(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    return file.read_text(encoding="utf-8").strip()


def signing_key(home: Path, environment: Mapping[str, str] = os.environ) -> bytes:
    """The key that signs resume states and shows hosts to each other: DYNOLAB_KEY, or the home's.

    **Raises** `ConfigError` for what is no key; it shows no part of it.
    """
    if given := environment.get(KEY):
        return _key(given, "is no key: give at least 64 hexadecimal digits (openssl rand -hex 32)")
    file = home / "key"
    return _key(kept_secret(file), f"is not set, and {file} holds no key: delete that file")


def ranks_secret(home: Path, salt: str) -> str:
    """What the ranks of one job on several hosts know, in hex; each host makes it by itself."""
    content = b"dynolab ranks\0" + salt.encode()
    return hmac.new(signing_key(home), content, sha256).hexdigest()


def check_key(environment: Mapping[str, str]) -> None:
    """Refuses a DYNOLAB_KEY that is none, before anything is signed with it."""
    if environment.get(KEY):
        signing_key(Path(), environment)


def login_token(home: Path) -> str:
    """What a home's servers ask of those who use them."""
    file = home / "token"
    return check_token(kept_secret(file), f"; delete {file}, and a new one is made")


def check_token(text: str, remedy: str = " (openssl rand -hex 32)") -> str:
    """The token, if it is one: letters and digits that nobody guesses, as they stand in a cookie.

    **Raises** `ConfigError`; it shows no part of it.
    """
    if len(text) < _TOKEN_LENGTH or not (text.isascii() and text.isalnum()):
        raise ConfigError(TOKEN, "…", f"give at least 32 letters and digits{remedy}")
    return text


def _key(text: str, wrong: str) -> bytes:
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) >= _KEY_BYTES:
            return key
    raise ConfigError(KEY, "…", wrong)


def _private_part(file: Path, content: str) -> Path:
    """A new file beside the one that it shall become."""
    part = file.with_name(f"{file.name}.{uuid4().hex}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(content)
    return part
