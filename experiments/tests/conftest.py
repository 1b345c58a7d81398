"""Fixtures of the core's tests."""

from __future__ import annotations

from tests.conftest import analysed

__all__ = ["analysed"]
