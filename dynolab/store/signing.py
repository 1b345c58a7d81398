"""Signatures of resume states: only what this platform's own workers wrote is trained on.

Nothing in a state can run code (tensors are safetensors, the rest is JSON), and yet whoever may
write to the store could put other weights there. A signature is HMAC-SHA256 (RFC 2104) over the
manifest's bytes as they are stored; the manifest holds stage, key, step and every file's sha256.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from hashlib import sha256

_PURPOSE = b"dynolab resume state\0"  # the same key may sign other things one day
_OF_THIS_PROCESS = secrets.token_bytes(32)


def process_key() -> bytes:
    """A key that ends with this process: it believes its own states and nobody else's."""
    return _OF_THIS_PROCESS


class Signer:
    """Signs with a key that is asked for when it is first needed, and never shown."""

    def __init__(self, key: Callable[[], bytes]) -> None:
        self._key = key

    def sign(self, content: bytes) -> str:
        """The signature, in hex."""
        return hmac.new(self._key(), _PURPOSE + content, sha256).hexdigest()

    def signed(self, content: bytes, signature: str | None) -> bool:
        """Whether it is the signature of that content; compared in constant time."""
        return signature is not None and hmac.compare_digest(signature, self.sign(content))
