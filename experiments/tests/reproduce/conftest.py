"""Fixtures of the core's tests of commands."""

from __future__ import annotations

from tests.flows.conftest import allowed, command

__all__ = ["allowed", "command"]
