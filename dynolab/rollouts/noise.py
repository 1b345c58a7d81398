"""Counter-based random numbers per response: the same for any batch and device."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

_STEP = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number: 2⁶⁴ over the golden ratio
_MIXES = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))


def position_keys(
    seed: int, step: int, prompt: int, sample: int, count: int
) -> Int[ndarray, " positions"]:
    """A random key for every token of one response.

    Philox is counter-based: the keys depend only on the first four arguments (Salmon et al.,
    *Parallel random numbers: as easy as 1, 2, 3*, 2011), and fewer keys are a prefix of more.
    """
    stream = np.random.Philox(np.random.SeedSequence([seed, step, prompt, sample]))
    return stream.random_raw(count).view(np.int64)


def gumbel(keys: Int[Tensor, " rows"], vocabulary: int) -> Float[Tensor, "rows vocabulary"]:
    """Standard Gumbel noise `−log(−log u)` for every token of every row, from the row's key alone.

    Token v's u is the (v + 1)-th output of SplitMix64 started at the key (Steele, Lea & Flood,
    *Fast splittable pseudorandom number generators*, 2014): stateless, so the same for any batch
    and device. `argmax_v log p_v + g_v` is a sample from p, and it is more robust to rounding of p
    than inverse-CDF sampling: the token changes with a probability of the order of the rounding,
    not of the rounding times the number of tokens.
    """
    counter = torch.arange(1, vocabulary + 1, device=keys.device) * _STEP
    bits = keys[:, None] + counter
    for shift, factor in _MIXES:
        bits = _mixed(bits, shift).mul_(factor)
    # 52 bits, so that adding 0.5 is exact and u is neither 0 nor 1.
    uniform = _shifted(_mixed(bits, 31), 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_()


def _mixed(bits: Int[Tensor, "rows n"], shift: int) -> Int[Tensor, "rows n"]:
    return _shifted(bits, shift).bitwise_xor_(bits)


def _shifted(bits: Int[Tensor, "rows n"], shift: int) -> Int[Tensor, "rows n"]:
    """Logical right shift of 64-bit integers; torch's `>>` is arithmetic."""
    return (bits >> shift).bitwise_and_((1 << (64 - shift)) - 1)
