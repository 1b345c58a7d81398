"""How the ranks of a job find and authenticate each other; imports no torch."""

from __future__ import annotations

import hmac
import os
from hashlib import sha256

from dynolab.errors import DynolabError

MEETING = "DYNOLAB_MEETING"
"""The variable that names the file by which the ranks of one host find each other.

Without one they meet at torchrun's address, where whoever reaches the port can read and change what
they tell each other.
"""

SECRET = "DYNOLAB_RANKS_SECRET"
"""The variable that holds what the ranks of one job know and nobody else."""

_DIGEST_BYTES = sha256().digest_size


def sealed(content: bytes, rank: int, number: int) -> bytes:
    """Content under a digest that only a rank of this job can make.

    **Arguments:** `rank`: who sends it. `number`: of the exchange that it is part of.
    """
    return _digest(content, rank, number) + content


def unsealed(data: bytes, rank: int, number: int) -> bytes:
    """The content that `sealed` was given; raises DynolabError for anything else."""
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(content, rank, number)):
        raise DynolabError(f"what came from rank {rank} was not sent by a rank of this job")
    return content


def _digest(content: bytes, rank: int, number: int) -> bytes:
    secret = os.environ.get(SECRET, "").encode()
    return hmac.digest(secret, f"{rank} {number} ".encode() + content, sha256)
