"""Whole messages of errors, for `pytest.raises`."""

from __future__ import annotations

import re


def exactly(message: str) -> str:
    """A pattern for `match` that this very message matches and no other."""
    return rf"\A{re.escape(message)}\Z"
