"""Pushes on a language model's answers: the step itself, and what each picture predicts of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import pytest
import torch
from torch import Tensor

from dynolab.data.encode import EncodedExample
from dynolab.forces import PolicyFunction, breakdown
from dynolab.objectives import SFT, SFTConfig
from dynolab.training.step_record import RecordedExample
from experiments.chapters.squeezing.claims import model_verdicts
from experiments.chapters.squeezing.pushes import Pushed, Tally, pushes
from tests.forces.families import build
from tests.forces.small_models import pair

FALL = 0.01


def examples(count: int = 2) -> list[EncodedExample]:
    made = [pair(seed) for seed in range(count)]
    return [EncodedExample(one.id, one.chosen, one.rejected) for one in made]


def found(family: str, fall: float = FALL, count: int = 2) -> list[Pushed]:
    return list(pushes(PolicyFunction(build(family), torch.float64), examples(count), fall))


def moved_alone(family: str, part: str, step: float) -> Tensor:
    """Δ log π at the first pair's rejected answer by a real step of some weights alone."""
    model, (one, *_) = build(family), examples()
    policy = PolicyFunction(model, torch.float64)
    assert one.rejected is not None
    batch = policy.batch([one.rejected])
    start = policy.weights
    leaves = {name: w.clone().requires_grad_() for name, w in start.items()}
    policy.logps(leaves, batch).sum().backward()
    after = {name: w - step * leaves[name].grad if part in name else w for name, w in start.items()}
    with torch.no_grad():
        before, moved = (policy.logits(w, batch).log_softmax(-1) for w in (start, after))
    return moved - before


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied"])
def test_the_measured_change_is_that_of_a_real_step(family: str) -> None:
    one = found(family)[0]
    torch.testing.assert_close(one.measured, moved_alone(family, "", one.step))


def test_the_last_layer_s_change_is_that_of_a_step_on_the_head_alone() -> None:
    untied = found("llama_untied")[0]
    torch.testing.assert_close(
        untied.last_layer, moved_alone("llama_untied", "lm_head", untied.step)
    )


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied"])
def test_the_last_layer_is_the_head_s_part_of_the_force_map(family: str) -> None:
    """To first order, token by token, also where head and embedding are one table."""
    (one, *_) = examples()
    pushed = found(family, 1e-5)[0]
    policy = PolicyFunction(build(family), torch.float64)
    assert one.rejected is not None
    updating = [RecordedExample(id="a", chosen=one.rejected, rejected=None)]
    parts = breakdown(policy, [one.rejected], updating, SFT(SFTConfig()), update=pushed.step)
    own = pushed.last_layer.gather(1, pushed.label[:, None]).squeeze(1)
    torch.testing.assert_close(own, -parts.head.sum(1), rtol=1e-4, atol=1e-10)


def test_the_pushed_answer_loses_as_much_as_was_asked() -> None:
    own = [one for one in found("gpt_neox", 1e-5) if one.answer == "rejected"]
    for one in own:
        lost = one.measured.gather(1, one.label[:, None]).mean()
        assert float(lost) == pytest.approx(-1e-5, rel=1e-3)


@pytest.mark.parametrize("family", ["gpt_neox", "llama_tied"])
def test_the_first_order_is_what_a_small_step_does(family: str) -> None:
    for one in found(family, 1e-6):
        assert (one.measured - one.first_order).norm() < 1e-4 * one.measured.norm()


def test_one_token_s_own_softmax_is_its_last_layer() -> None:
    pairs = [EncodedExample(one.id, one.chosen, one.rejected) for one in [pair(0, rejected=1)]]
    policy = PolicyFunction(build("gpt_neox"), torch.float64)
    own, chosen = pushes(policy, pairs, FALL)
    assert own.own_token is not None
    torch.testing.assert_close(own.own_token, own.last_layer)
    assert chosen.own_token is None


def tally(answers: Sequence[Pushed]) -> Tally:
    made = Tally()
    for one in answers:
        made.add(one)
    return made


def test_the_tally_keeps_what_all_tokens_together_say() -> None:
    answers = found("gpt_neox", count=3)
    kept = tally(answers)
    left = {(one["answer"], one["picture"]): one["left"] for one in kept.left_over()}
    assert ("chosen", "own_token") not in left
    own = [one for one in answers if one.answer == "rejected"]
    wrong = sum(float((one.measured - one.last_layer).square().sum()) for one in own)
    size = sum(float(one.measured.square().sum()) for one in own)
    assert left["rejected", "last_layer"] == pytest.approx(wrong / size)
    assert left["rejected", "first_order"] < left["rejected", "last_layer"]
    for row, one in zip(kept.rows, answers, strict=True):
        change = one.measured.gather(1, one.label[:, None])
        assert row["label_fell"] == int((change < 0).sum())
    ranks = {(one["answer"], one["first"]): one for one in kept.rank_changes()}
    changes = torch.cat([one.measured.gather(1, one.label[:, None]) for one in own])
    assert ranks["rejected", 0]["measured"] == pytest.approx(float(changes.mean()))
    assert math.isnan(ranks["chosen", 0]["own_token"])
    ends = [(one["first"], one["last"]) for key, one in ranks.items() if key[0] == "rejected"]
    assert sum(last - first + 1 for first, last in ends) == own[0].measured.shape[1]


def test_claims_about_a_model_are_judged_by_its_pairs() -> None:
    kept = tally(found("gpt_neox", count=4))
    pushed, left = pd.DataFrame(kept.rows), pd.DataFrame(kept.left_over())
    verdicts = {one.id: one for one in model_verdicts(pushed, left)}
    assert verdicts["model/first_order/rejected"].outcome == "holds"
    assert {one.measured[0].n for one in verdicts.values()} == {4}
