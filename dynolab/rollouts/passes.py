"""pass@k: the share of prompts that k samples solve, estimated without bias from n of them."""

from __future__ import annotations

from math import comb

from dynolab.errors import ConfigError

SAMPLES_PER_K = 4
"""Samples to a prompt, at least, for each of k: of n = k samples a prompt's pass@k is 0 or 1,
whatever its chance is."""


def check_samples(samples: int, k: int) -> None:
    """Refuses fewer samples to a prompt than pass@k needs.

    **Raises:** `ConfigError`.
    """
    if samples < SAMPLES_PER_K * k:
        raise ConfigError(
            "samples",
            samples,
            f"pass@{k} is estimated from at least {SAMPLES_PER_K * k} samples to a prompt, "
            f"{SAMPLES_PER_K} for each of k: raise samples, or lower k to at most "
            f"{samples // SAMPLES_PER_K}",
        )


def pass_levels(k: int) -> tuple[int, ...]:
    """The k that are shown up to the largest: powers of two, and the largest."""
    return tuple(sorted({2**n for n in range(k.bit_length()) if 2**n <= k} | {k}))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """`1 − C(n−c, k)/C(n, k)`, the chance that k of n samples, c correct, hold a correct one.

    Chen et al., arXiv 2107.03374, eq. 1.

    **Raises:** `ConfigError` for k beyond the samples, and for impossible counts.
    """
    if not 1 <= k <= samples:
        raise ConfigError("k", k, f"must lie in 1..{samples}, the samples of a prompt")
    if not 0 <= correct <= samples:
        raise ConfigError("correct samples", correct, f"must lie in 0..{samples}")
    return 1 - comb(samples - correct, k) / comb(samples, k)
