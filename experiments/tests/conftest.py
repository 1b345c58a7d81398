"""Fixtures of the core's tests."""

from __future__ import annotations

from tests.conftest import analysed, inputs

__all__ = ["analysed", "inputs"]
