"""What can go wrong with a request, and which errors are worth a retry."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from openai import APIStatusError

LONGEST_WAIT = 300.0  # seconds
_AGAIN = frozenset({408, 409, 425, 429})


@dataclass(frozen=True)
class Trouble:
    """A request without an answer.

    `name` is what it is counted as. `after` are seconds that the server wants all requests to
    wait; `crowded` says that there were too many.
    """

    name: str
    reason: str
    again: bool = True
    after: float | None = None
    crowded: bool = False


def status_trouble(error: APIStatusError, model: str, reason: str) -> Trouble:
    """The trouble behind an HTTP status.

    **Raises:** `ConfigError` where every other request must fail in the same way: a key that is
    refused or used up, a model that is not there. It hides the error behind it, which may repeat
    the key.
    """
    status = error.status_code
    if status in (401, 403) or error.code == "insufficient_quota":
        remedy = f"the endpoint refuses it: {reason}"
        raise ConfigError("OPENAI_API_KEY", "(not shown)", remedy) from None
    if status == 404:
        remedy = f"the endpoint does not know it, or OPENAI_BASE_URL leads elsewhere: {reason}"
        raise ConfigError("model", model, remedy) from None
    again = status in _AGAIN or status >= 500
    name = "rate_limited" if status == 429 else "server_errors" if again else "refused"
    return Trouble(name, reason, again, _retry_after(error.response.headers), status == 429)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, a number or a date (RFC 9110, section 10.2.3)."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT) if math.isfinite(seconds) else None
