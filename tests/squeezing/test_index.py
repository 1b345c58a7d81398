"""The squeezing index: of one step on a softmax, and of answers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from dynolab.data.batches import collate
from dynolab.forces import PolicyFunction
from dynolab.results.study import RisenMass
from dynolab.squeezing.index import answers_risen_mass, own_share, risen_mass, squeeze_index
from tests.forces.small_models import encoded, neox


def test_it_is_the_share_of_risen_probability_that_the_argmax_took() -> None:
    before = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], dtype=torch.float64)
    after = torch.tensor([[0.7, 0.1, 0.2], [0.3, 0.5, 0.2]], dtype=torch.float64)
    found = risen_mass(before.log(), after.log(), torch.tensor([1, 0]))
    # First row: the argmax alone rises; second: the answer's own token alone.
    expected = torch.tensor([[0.2, 0.2, 0.0], [0.2, 0.0, 0.2]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    rows = [mass_row(f"p{number}", *values) for number, values in enumerate(found.tolist())]
    assert squeeze_index(rows).mean == pytest.approx(0.5)
    assert own_share(rows).mean == pytest.approx(0.5)


def mass_row(pair: str, risen: float, argmax: float, own: float) -> RisenMass:
    return RisenMass(
        training="dpo",
        step=1,
        pair_id=pair,
        split="train",
        kind="chosen",
        tokens=1,
        risen=risen,
        argmax=argmax,
        own=own,
    )


def test_where_nothing_rose_there_is_no_index() -> None:
    assert squeeze_index([]).n == 0
    assert np.isnan(squeeze_index([mass_row("a", 0.0, 0.0, 0.0)]).mean)


def test_a_push_on_a_peaked_policy_feeds_its_argmax_alone() -> None:
    """The limit of §3.3 of arXiv 2407.10490: the peakier, the more of it goes to i*."""
    torch.manual_seed(0)
    logits = torch.randn(200, 30, dtype=torch.float64)
    label = logits.argsort(dim=-1)[:, 15]
    shares = []
    for sharpness in (1.0, 3.0, 10.0):
        logp = (sharpness * logits).log_softmax(-1)
        assert bool((label != logp.argmax(-1)).all())
        p = logp.exp()
        pushed = (logp - one_hot(label, 30) + p).log_softmax(-1)
        mass = risen_mass(logp, pushed, label).sum(0)
        shares.append(float(mass[1] / mass[0]))
    assert shares == sorted(shares)
    assert shares[-1] > 0.95


def test_answers_add_up_their_positions_whatever_the_batch() -> None:
    policy = PolicyFunction(neox(), torch.float64)
    moved = {name: w + 0.05 * torch.randn_like(w) for name, w in policy.weights.items()}
    before, after = (partial(policy.logits, weights) for weights in ({}, moved))
    answers = [encoded(seed, response=3 + seed) for seed in range(5)]
    found = answers_risen_mass(before, after, answers, batch_tokens=20)
    for one, sums in zip(answers, found, strict=True):
        batch = collate([one], 0)
        alone = risen_mass(before(batch), after(batch), batch.token).sum(0)
        torch.testing.assert_close(sums, alone.detach())
    assert bool((found[:, 1:] <= found[:, :1] + 1e-12).all())
