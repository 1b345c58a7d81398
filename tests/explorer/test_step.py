"""What is computed when asked for, against the engine's route by single tokens, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.explorer.lines import Lines
from dynolab.explorer.step import AskedStep, under, with_pair
from dynolab.forces import PolicyFunction, split_step, token_forces
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import IPOConfig, SFTConfig
from dynolab.training.step_record import StepRecord
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


def test_lines_are_sums_of_tokens_and_close(record: StepRecord, policy: PolicyFunction) -> None:
    lines = AskedStep(record, policy).lines(ANSWERS)
    assert_same(lines, token_by_token(record, policy))
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
    assert_same(AskedStep(replaced, policy).lines(ANSWERS), token_by_token(replaced, policy))


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
    by_side = [float(lines.through(side)[0]) for side in ("chosen", "rejected")]
    assert step.on_tokens(answer).sum(0) == pytest.approx(by_side, abs=0.05 * size)
    for push in lines.pushers(0):
        token_map = step.token_map(push.example, answer, Letters(), name="answer", kind="chosen")
        force, border = np.array(token_map.force), len(token_map.chosen_tokens)
        assert force[:, :border].sum() == pytest.approx(push.from_chosen, abs=0.05 * size)
        assert force[:, border:].sum() == pytest.approx(push.from_rejected, abs=0.05 * size)
        assert token_map.observed_id == "answer" and token_map.step == record.facts.step
