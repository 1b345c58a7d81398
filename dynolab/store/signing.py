"""Signatures of resume states: training resumes only from states of this platform's own workers.

A state cannot run code (tensors are safetensors, the rest is JSON), but anyone who can write to
the store could replace the weights. A signature is HMAC-SHA256 (RFC 2104) over the manifest's
stored bytes; the manifest holds stage, key, step and every file's sha256.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from hashlib import sha256

_PURPOSE = b"dynolab resume state\0"  # the same key signs other things, too
_PROCESS_KEY = secrets.token_bytes(32)


def process_key() -> bytes:
    """A random key for this process's lifetime: it accepts only its own states."""
    return _PROCESS_KEY


class Signer:
    """Signs and verifies with a key that it reads only when needed."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def sign(self, content: bytes) -> str:
        """The signature, in hex."""
        return hmac.new(self._key(), _PURPOSE + content, sha256).hexdigest()

    def signed(self, content: bytes, signature: str | None) -> bool:
        """Whether `signature` is the content's; compares in constant time."""
        return signature is not None and hmac.compare_digest(signature, self.sign(content))
