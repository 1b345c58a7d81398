from __future__ import annotations

import numpy as np
import pytest
import torch

from dynolab.rollouts.decoding import gumbel, position_keys

WHOLE = 2**64


def splitmix(key: int, count: int) -> np.ndarray:
    """SplitMix64 as its paper writes it, on whole numbers: uniform in (0, 1)."""
    state, drawn = key % WHOLE, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WHOLE
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WHOLE
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WHOLE
        drawn.append(((z ^ (z >> 31)) >> 12) / 2**52 + 2.0**-53)
    return np.array(drawn)


def test_noise_is_splitmix_on_the_rows_key() -> None:
    keys = [0, 1, -1, 2**63 - 1, -(2**63), 1234567]
    noise = gumbel(torch.tensor(keys), 50).numpy()
    for key, row in zip(keys, noise, strict=True):
        np.testing.assert_allclose(row, -np.log(-np.log(splitmix(key, 50))), rtol=1e-13)
    assert np.isfinite(noise).all()


def test_known_values_of_splitmix() -> None:
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    np.testing.assert_allclose(splitmix(1234567, 3), np.array(known) / 2**64, rtol=1e-15)


def test_a_tokens_noise_depends_on_nothing_but_its_row() -> None:
    keys = torch.tensor([5, 6, 7])
    whole = gumbel(keys, 30)
    assert torch.equal(gumbel(keys[1:2], 10), whole[1:2, :10])


def test_noise_is_standard_gumbel_over_tokens_and_over_places() -> None:
    keys = torch.from_numpy(position_keys(0, 0, 0, 0, 400))
    noise = gumbel(keys, 400)
    uniform = torch.exp(-torch.exp(-noise)).numpy()
    for values in (uniform[0], uniform[:, 0], uniform.diagonal(), uniform.ravel()):
        distance = np.abs(np.sort(values) - np.arange(1, len(values) + 1) / len(values)).max()
        assert distance < 2 / len(values) ** 0.5  # Kolmogorov: exceeded with probability 7e-4
    assert noise.mean().item() == pytest.approx(np.euler_gamma, abs=5 * 1.2825 / 400)
    correlation = np.corrcoef(uniform)[np.triu_indices(400, 1)]
    assert correlation.std() == pytest.approx(1 / 400**0.5, rel=0.05)


def test_draws_follow_the_distribution() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.0499, 0.0001], dtype=torch.float64)
    count = 20_000
    keys = np.concatenate([position_keys(1, 0, prompt, 0, 100) for prompt in range(count // 100)])
    drawn = (p.log() + gumbel(torch.from_numpy(keys), 5)).argmax(-1).bincount(minlength=5)
    for often, share in zip(drawn.tolist(), p.tolist(), strict=True):
        assert often / count == pytest.approx(share, abs=5 * (share / count) ** 0.5)


def test_keys_of_a_longer_response_begin_with_a_shorter_ones() -> None:
    assert (position_keys(1, 2, 3, 4, 7) == position_keys(1, 2, 3, 4, 100)[:7]).all()
    each = [(1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5)]
    assert len({tuple(position_keys(*place, 3).tolist()) for place in each}) == len(each)
