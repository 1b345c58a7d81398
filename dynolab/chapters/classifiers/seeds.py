"""Separate seeds for the random draws within a run."""

from __future__ import annotations

import zlib

import numpy as np


def seed_for(purpose: str, seed: int) -> int:
    """Derives a separate seed for each random draw of a run, by its purpose.

    Draws that share a seed are not independent: they give the same permutation of N examples, and
    the same weights to networks of equal layers.
    """
    state = np.random.SeedSequence([seed, zlib.crc32(purpose.encode())]).generate_state(1)
    return int(state[0])
