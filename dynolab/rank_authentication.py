"""How the ranks of a job find and authenticate each other; imports no torch."""

from __future__ import annotations

import hmac
import os
from hashlib import sha256

from dynolab.errors import DynolabError

MEETING = "DYNOLAB_MEETING"
"""Environment variable: the file through which the ranks of one host find each other.

Without it they meet at torchrun's address, where anyone who reaches the port can read and change
their messages.
"""

SECRET = "DYNOLAB_RANKS_SECRET"
"""Environment variable: the secret that the ranks of one job share."""

_DIGEST_BYTES = sha256().digest_size


def sealed(content: bytes, rank: int, number: int) -> bytes:
    """Prefixes content with a digest that only a rank of this job can make.

    **Arguments:** `rank`: the sender. `number`: the exchange's number.
    """
    return _digest(content, rank, number) + content


def unsealed(data: bytes, rank: int, number: int) -> bytes:
    """Inverse of `sealed`; raises DynolabError if the digest does not match."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(content, rank, number)):
        raise DynolabError(f"the message of rank {rank} was not sent by a rank of this job")
    return content


def _digest(content: bytes, rank: int, number: int) -> bytes:
    secret = os.environ.get(SECRET, "").encode()
    return hmac.digest(secret, f"{rank} {number} ".encode() + content, sha256)
