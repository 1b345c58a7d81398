"""A step's watched answers: their rows, how they are shared out, in which forwards scored; and the
second order of a change of the weights, with the radius that follows from it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, step_forces, step_validity
from dynolab.forces.function.views import View
from dynolab.forces.step.one_step import second_order
from dynolab.forces.step.step_forces import Start, StepForces, crossing
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import SFTConfig
from dynolab.results.forces import UNEXPLAINED
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import StepRecord
from tests.forces.small_models import (
    direction,
    encoded,
    llama,
    neox,
    probe,
    recorded,
    relative,
)


class Numbers:
    """A tokenizer of numbers between blanks."""

    eos_token_id, eos_token, bos_token_id, pad_token_id = 2, " 2", None, 0

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True
    ) -> dict[str, list[int] | list[list[int]]]:
        if isinstance(text, list):
            return {"input_ids": [[int(word) for word in one.split()] for one in text]}
        return {"input_ids": [int(word) for word in text.split()]}


PROBES = [
    probe("pair-0", "chosen", "5 6 7", " 8 9"),
    probe("pair-0", "rejected", "5 6 7", " 8 10 11 12"),
    probe("pair-9", "chosen", "30 31", " 32 33 34"),
    probe("pair-9", "irr_test", "30 31", " 20"),
]


@pytest.fixture(scope="module")
def record() -> StepRecord:
    momentum = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)
    return recorded(neox(), momentum, count=3)


def forces(record: StepRecord, **more: Any) -> StepForces:
    encoder, policy = Encoder(Numbers(), 32, "drop"), PolicyFunction(neox(), torch.float64)
    made = step_forces(record, policy, PROBES, encoder, stage="dpo", **more)
    assert encoder.counts.kept == 0
    return made


def test_rows_follow_the_probes_and_add_up(record):
    made = forces(record)
    assert [(row.pair_id, row.kind, row.tokens, row.in_batch) for row in made.rows] == [
        ("pair-0", "chosen", 3, True),
        ("pair-0", "argmax", 3, True),
        ("pair-0", "rejected", 5, True),
        ("pair-9", "chosen", 4, False),
        ("pair-9", "argmax", 4, False),
        ("pair-9", "irr_test", 2, False),
    ]
    assert {(row.stage, row.step, row.split) for row in made.rows} == {("dpo", 1, "train")}
    for row in made.rows:
        parts = row.from_chosen + row.from_rejected + row.from_history
        assert row.predicted == pytest.approx(parts, rel=1e-6, abs=1e-12)
        assert row.residual == pytest.approx(row.measured - row.predicted, abs=1e-15)
        assert abs(row.residual) < 1e-3 * abs(row.measured) + 1e-7
        assert row.from_history != 0
    replay = made.replay
    assert max(replay.replay_error, replay.closure_error) < 1e-9
    assert (replay.step, replay.clip_factor) == (1, record.facts.clip_factor)


def test_measured_changes_are_those_of_the_weights_by_themselves(record):
    sequences = [Encoded((5, 6, 7, 8, 9, 2), 3), Encoded((5, 6, 7, 8, 10, 11, 12, 2), 3)]
    chosen, argmax, rejected = forces(record).rows[:3]
    values, best = {}, None
    for name, state in (("before", record.before), ("after", record.after)):
        model = neox(seed=9)
        model.load_state_dict(state)
        for row, sequence in zip((chosen, rejected), sequences, strict=True):
            batch = collate([sequence], 0)
            with torch.no_grad():
                logits = ResponseLogits(model)(batch)
            values[name, row.kind] = float(token_logps(logits, batch).sum())
            if row is chosen:
                best = logits.argmax(-1) if best is None else best
                picked = logits.log_softmax(-1).gather(-1, best[:, None])
                values[name, "argmax"] = float(picked.sum())
    for row in (chosen, argmax, rejected):
        change = values["after", row.kind] - values["before", row.kind]
        assert row.measured == pytest.approx(change, abs=1e-12)


def test_batching_changes_nothing(record):
    together, alone = (forces(record, batch_tokens=tokens).rows for tokens in (4096, 1))
    for row, other in zip(together, alone, strict=True):
        assert row.kind == other.kind
        expected = pytest.approx((other.measured, other.predicted), abs=1e-12)
        assert (row.measured, row.predicted) == expected


def test_without_a_row_that_fits_there_is_nothing_to_watch(record):
    long = [probe("pair-0", "chosen", "5", " 6" * 40)]
    policy = PolicyFunction(neox(), torch.float64)
    with pytest.raises(
        ConfigError, match="probes = 0: no probe row is left to watch; give rows that fit"
    ):
        step_forces(record, policy, long, Encoder(Numbers(), 32, "drop"), stage="dpo")


H = 1e-4


def moved(place, change, s):
    return {name: w + s * change[name] if name in change else w for name, w in place.items()}


@pytest.fixture(params=["neox", "llama", "tempered"])
def case(request):
    model = llama(dtype=torch.float64) if request.param == "llama" else neox()
    policy = PolicyFunction(model, torch.float64)
    batch = policy.batch([encoded(0), encoded(1, response=3)])
    if request.param == "tempered":
        batch = replace(batch, temperature=0.7)
    view = View.realised(batch).beside(View.argmax(policy.logits({}, batch)))
    return policy, direction(model, 0.02), batch, view


def test_both_orders_are_those_of_differences(case):
    policy, change, batch, view = case
    place = policy.weights
    made = second_order(policy, place, change, batch, view)
    first = policy.change_along(place, [change], batch, view=view)[0]
    ahead, behind = (
        policy.change_along(moved(place, change, s), [change], batch, view=view)[0] for s in (H, -H)
    )
    assert relative(made.first, first) < 1e-12
    assert relative(2 * (made.jacobian + made.softmax), (ahead - behind) / (2 * H)) < 1e-6
    assert (made.softmax <= 0).all()


def test_the_exact_softmax_departs_from_both_orders_with_the_third_power(case):
    policy, change, batch, view = case
    made = second_order(policy, policy.weights, change, batch, view)
    errors = [
        (made.change(s) - s * made.first - s**2 * (made.jacobian + made.softmax)).norm()
        for s in (1e-2, 2e-2)
    ]
    assert float(errors[1] / errors[0]) == pytest.approx(8, rel=0.1)


def test_where_the_head_alone_moves_all_curvature_is_the_softmax():
    """Logits are then linear in the weights."""
    policy = PolicyFunction(neox(), torch.float64)
    batch = policy.batch([encoded(0), encoded(1, response=3)])
    view = View.realised(batch)
    change = {n: w for n, w in direction(neox(), 0.3).items() if "embed_out" in n or "lm_head" in n}
    made = second_order(policy, policy.weights, change, batch, view)
    after = policy.observed(moved(policy.weights, change, 1), batch, view)
    exact = after - policy.observed(policy.weights, batch, view)
    assert relative(made.with_straight_logits, exact) < 1e-12
    assert relative(made.first, exact) > 1e-3


def test_falls_are_of_the_chosen_answers_that_fell():
    record = recorded(neox(), OptimizerConfig(name="adamw", learning_rate=1e-2), SFTConfig())
    policy, encoder = PolicyFunction(neox(), torch.float64), Encoder(Numbers(), 32, "drop")
    made = step_validity(record, policy, PROBES, encoder, stage="dpo")
    rows = step_forces(record, policy, PROBES, encoder, stage="dpo").rows
    fell = [row.measured for row in rows if row.kind == "chosen" and row.measured < 0]
    assert made.falls is not None and made.falls.answers == len(fell) > 0
    assert made.falls.measured == pytest.approx(sum(fell) / len(fell))
    # Logits that move straight leave the softmax' curvature, which lowers every answer.
    assert made.falls.softmax < made.falls.first and made.falls.curvature > 0


def test_a_share_crosses_its_bound_between_two_multiples():
    multiples = [1.0, 2.0, 4.0, 8.0]
    assert crossing(multiples, [1e-4 * s**2 for s in multiples], 4e-4) == pytest.approx(2)
    assert crossing(multiples, [1e-4 * s**2 for s in multiples], 9e-4) == pytest.approx(3)
    assert math.isnan(crossing(multiples, [1e-4] * 4, 1e-3))
    assert math.isnan(crossing(multiples, [1e-2] * 4, 1e-3))


def validity(optimizer, dtype=torch.float64):
    record = recorded(neox(), optimizer, count=3)
    policy = PolicyFunction(neox(), dtype)
    return step_validity(record, policy, PROBES, Encoder(Numbers(), 32, "drop"), stage="dpo")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_steps_radius_predicts_where_longer_steps_leave_first_order(optimizer):
    rate = 1e-2 if optimizer == "sgd" else 1e-3
    made = validity(OptimizerConfig(name=optimizer, learning_rate=rate))
    assert made.answers == len(PROBES) + 2  # the argmax of both chosen answers
    assert made.predicted > 1
    assert made.unexplained < UNEXPLAINED
    assert 0.5 < made.predicted / made.measured < 2
    assert math.isfinite(made.softmax)


def test_changes_of_several_steps_start_from_the_first_ones_weights():
    momentum = OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9)
    before, record = (recorded(neox(), momentum, count=3, steps=steps) for steps in (1, 2))
    policy, encoder = PolicyFunction(neox(), torch.float64), Encoder(Numbers(), 32, "drop")
    own, path = (
        step_validity(record, policy, PROBES, encoder, stage="dpo", since=since)
        for since in (None, Start(0, before.before))
    )
    assert (own.since, path.since, path.step) == (None, 0, 1)
    assert path.unexplained > own.unexplained
