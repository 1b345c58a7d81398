"""How a request can fail, and which failures are worth a retry."""

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
_RETRYABLE = frozenset({408, 409, 425, 429})


@dataclass(frozen=True)
class Trouble:
    """A failed request.

    `name` is the count that it goes to. `retry_after` is how many seconds the server wants all
    requests to wait; `rate_limited` whether there were too many.
    """

    name: str
    reason: str
    retryable: bool = True
    retry_after: float | None = None
    rate_limited: bool = False


def status_trouble(error: APIStatusError, model: str, reason: str) -> Trouble:
    """Classifies an HTTP error status.

    **Raises:** `ConfigError` if every other request would fail in the same way: a rejected or
    exhausted key, an unknown model. It hides its cause, which may repeat the key.
    """
    status = error.status_code
    if status in (401, 403) or error.code == "insufficient_quota":
        remedy = f"the endpoint rejects it: {reason}"
        raise ConfigError("OPENAI_API_KEY", "(not shown)", remedy) from None
    if status == 404:
        remedy = f"no such model at the endpoint, or OPENAI_BASE_URL is wrong: {reason}"
        raise ConfigError("model", model, remedy) from None
    retryable = status in _RETRYABLE or status >= 500
    name = "rate_limited" if status == 429 else "server_errors" if retryable else "refused"
    return Trouble(name, reason, retryable, _retry_after(error.response.headers), status == 429)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds in a Retry-After header, a number or a date (RFC 9110, section 10.2.3)."""
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
