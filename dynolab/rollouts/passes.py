"""pass@k: the share of prompts that k samples solve, estimated without bias from n of them."""

from __future__ import annotations

from math import comb

from dynolab.errors import ConfigError


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
