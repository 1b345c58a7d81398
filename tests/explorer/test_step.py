"""What is computed when asked for, against the engine's route by single tokens, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.explorer.lines import TOGETHER, Lines
from dynolab.explorer.step import AskedStep, under, with_pair
from dynolab.forces import PolicyFunction, split_step, token_forces
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import IPOConfig, SFTConfig
from dynolab.training.step_record import StepRecord
from tests.forces.brute_ledger import dose_gradients, torch_step
from tests.forces.small_models import Letters, encoded, neox, pair, recorded, with_reference

ANSWERS = [encoded(77, prompt=4, response=6), encoded(78, prompt=3, response=4)]


@pytest.fixture(scope="module")
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


@pytest.fixture(scope="module")
def record() -> StepRecord:
    """Of AdamW, with momentum from the step before."""
    return recorded(neox(), count=3)


def token_by_token(
    record: StepRecord, policy: PolicyFunction, update: FrozenUpdate | None = None
) -> Lines:
    """The same lines as sums of single tokens' forces, at both ends of the step."""
    known = update or split_step(record, policy).update
    rows, nats = [], []
    for number, example in enumerate(record.examples):
        ends = [
            [
                token_forces(record, policy, known, number, answer, at=at).sum(0)
                for at in (record.before, record.after)
            ]
            for answer in ANSWERS
        ]
        means = [(torch.stack(both).mean(0)).cpu().numpy() for both in ends]
        border = example.chosen.response_length
        for side, own in (("chosen", slice(0, border)), ("rejected", slice(border, None))):
            rows.append((record.facts.step, example.id, side))
            nats.append([mean[own].sum() for mean in means])
    step, ids, side = (np.array(column) for column in zip(*rows, strict=True))
    return Lines(step, ids, side, np.array(nats), np.zeros(len(ANSWERS)))


def assert_same(lines: Lines, truth: Lines) -> None:
    assert lines.pair.tolist() == truth.pair.tolist()
    assert lines.side.tolist() == truth.side.tolist()
    assert np.abs(truth.nats).max() > 1e-5
    assert lines.nats == pytest.approx(truth.nats, rel=1e-4, abs=1e-9)


def test_lines_are_sums_of_tokens_in_a_plain_gradient_step(
    record: StepRecord, policy: PolicyFunction
) -> None:
    plain = record.as_gradient_step()
    assert_same(AskedStep(plain, policy).lines(ANSWERS), token_by_token(plain, policy))


def test_lines_are_what_the_step_would_have_lacked_and_close(
    record: StepRecord, policy: PolicyFunction
) -> None:
    """By torch's own steps: of every response, and of two pairs that are left out at once."""
    gone = ("pair-0", "pair-2")
    lines = AskedStep(record, policy, gone).lines(ANSWERS)
    by_response = dose_gradients(record, policy)
    route = GroupedGradients.build(policy, record.before, ANSWERS)
    functionals = [Functional.mean("", [answer]) for answer in ANSWERS]
    ends = [slopes_of(functionals, route, at).gradients for at in (record.before, record.after)]

    def lacking(responses: set[int]) -> np.ndarray:
        rest = [g for place, g in enumerate(by_response) if place not in responses]
        with_all, without = (torch_step(record, grads) for grads in (by_response, rest))
        change = {name: with_all[name][0] - other[0] for name, other in without.items()}
        return ((ends[0] + ends[1]) / 2 @ flatten(change)).numpy()

    for place, line in enumerate(lines.nats):
        assert line == pytest.approx(lacking({place}), rel=1e-6)
    assert lines.left_out == pytest.approx(lacking({0, 1, 4, 5}), rel=1e-6)
    without = lines.what_if(gone)
    # The remaining pairs take the four places that are free.
    rest = [line for place, line in enumerate(lines.nats) if place not in {0, 1, 4, 5}]
    refilled = 4 / len(rest) * np.sum(rest, axis=0)
    assert without == pytest.approx(lines.measured - lacking({0, 1, 4, 5}) + refilled, rel=1e-6)
    assert np.abs(lines.apart["earlier momentum"]).max() > 0
    assert np.abs(lines.residual).max() < 0.05 * np.abs(lines.measured).max()


def test_another_objective_and_another_pair_change_the_step(
    record: StepRecord, policy: PolicyFunction
) -> None:
    for changed in (under(record, IPOConfig()), under(record, SFTConfig())):
        lines = AskedStep(changed.as_gradient_step(), policy).lines(ANSWERS)
        scale = {
            name: torch.full_like(w, record.facts.learning_rate)
            for name, w in policy.cast(record.before).items()
        }
        truth = token_by_token(changed, policy, FrozenUpdate(scale))
        own = truth.nats[np.abs(truth.nats).sum(1) > 0]
        assert lines.nats == pytest.approx(own, rel=1e-4, abs=1e-9)
    (other,) = with_reference(neox(), [pair(50).model_copy(update={"id": "other"})])
    replaced = with_pair(record, other)
    assert [example.id for example in replaced.examples][1:] == [
        example.id for example in record.examples
    ][1:]
    assert replaced.examples[0].id == "other" and with_pair(replaced, other) is replaced
    plain = replaced.as_gradient_step()
    assert_same(AskedStep(plain, policy).lines(ANSWERS), token_by_token(plain, policy))
    asked = AskedStep(replaced, policy).lines(ANSWERS)
    assert np.abs(asked.nats).max() < 1 and np.abs(asked.apart[TOGETHER]).max() < 1


def test_an_objective_without_its_reference_is_refused(record: StepRecord) -> None:
    bare = replace(
        record,
        examples=tuple(
            example.model_copy(update={"chosen_reference": None, "rejected_reference": None})
            for example in record.examples
        ),
    )
    with pytest.raises(ConfigError, match="needs a reference"):
        under(bare, IPOConfig())


def test_maps_and_colours_add_up_to_the_lines(record: StepRecord, policy: PolicyFunction) -> None:
    step = AskedStep(record, policy)
    lines, answer = step.lines(ANSWERS[:1]), ANSWERS[0]
    size = np.abs(lines.nats).max()
    plain = AskedStep(record.as_gradient_step(), policy)
    of_plain = plain.lines(ANSWERS[:1])
    by_side = [float(of_plain.through(side)[0]) for side in ("chosen", "rejected")]
    assert plain.on_tokens(answer).sum(0) == pytest.approx(by_side, rel=0.01)
    for push in lines.pushers(0):
        token_map = step.token_map(push.example, answer, Letters(), name="answer", kind="chosen")
        force, border = np.array(token_map.force), len(token_map.chosen_tokens)
        for side, line in (
            (force[:, :border], push.from_chosen),
            (force[:, border:], push.from_rejected),
        ):
            if side.sum() * line > 0:  # else the side keeps its shares of the step
                assert side.sum() == pytest.approx(line, abs=0.05 * size)
        assert token_map.observed_id == "answer" and token_map.step == record.facts.step
