"""pass@k: the share of prompts that k samples solve; an unbiased estimate from n samples."""

from __future__ import annotations

from math import comb

from dynolab.errors import ConfigError

SAMPLES_PER_K = 4
"""Minimum n/k. With n = k samples a prompt's estimate is 0 or 1, whatever its probability."""


def check_samples(samples: int, k: int) -> None:
    """Raises ConfigError if there are fewer samples per prompt than pass@k needs."""
    if samples < SAMPLES_PER_K * k:
        raise ConfigError(
            "samples",
            samples,
            f"pass@{k} needs at least {SAMPLES_PER_K * k} samples per prompt "
            f"({SAMPLES_PER_K} times k); raise samples, or lower k to at most "
            f"{samples // SAMPLES_PER_K}",
        )


def pass_levels(k: int) -> tuple[int, ...]:
    """The values of k to report: the powers of two up to `k`, and `k` itself."""
    return tuple(sorted({2**n for n in range(k.bit_length()) if 2**n <= k} | {k}))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """`1 − C(n−c, k)/C(n, k)`: probability that k of n samples, c correct, hold a correct one.

    Chen et al., arXiv 2107.03374, eq. 1.

    **Raises:** `ConfigError` if k is not in 1..n or c not in 0..n.
    """
    if not 1 <= k <= samples:
        raise ConfigError("k", k, f"must lie in 1..{samples}, the samples of a prompt")
    if not 0 <= correct <= samples:
        raise ConfigError("correct samples", correct, f"must lie in 0..{samples}")
    return 1 - comb(samples - correct, k) / comb(samples, k)
