"""The pieces that a replay is made of, by hand: batches, denominators, micro-batches, errors."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, Totals, collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, split_step
from dynolab.forces.step import split as split_module
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import (
    SideGradients,
    UpdateSplit,
    micro_batches,
    objective_batch,
    objective_logps,
    record_batch,
    replay_error,
    rounding_floor,
    step_totals,
)
from dynolab.likelihood.token_logps import top_tokens
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, build_objective
from dynolab.training.record import RecordedExample, RecordedGroup, StepRecord
from dynolab.training.recorded import RecordedCompletion
from tests.forces.small_models import encoded, neox, pair, pairs, recorded

DPO, SFT, GRPO = (build_objective(config) for config in (DPOConfig(), SFTConfig(), GRPOConfig()))


@pytest.fixture(scope="module")
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)


@pytest.fixture(scope="module")
def record() -> StepRecord:
    return recorded(neox(), count=3)


def of(**tensors: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in tensors.items()}


def step(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> StepRecord:
    """A record of which the weights alone matter."""
    return StepRecord(None, (), before, after, {})  # type: ignore[arg-type]


def test_gradients_and_parts_of_an_update_add_up() -> None:
    gradients = SideGradients(of(w=[1.0, 2.0]), of(w=[10.0, -20.0]))
    assert gradients.total()["w"].tolist() == [11.0, -18.0]
    split = UpdateSplit(of(w=[1.0]), of(w=[20.0]), of(w=[300.0]), FrozenUpdate({}, {}))
    assert split.total()["w"].tolist() == [321.0]
    assert split.parts() == {
        "from_chosen": split.from_chosen,
        "from_rejected": split.from_rejected,
        "from_history": split.from_history,
    }


def test_a_replay_error_is_the_gap_relative_to_the_change() -> None:
    # The change is (3, 4), the replay (3, 3): a gap of 1 in 5.
    split = UpdateSplit(of(w=[1.0, 1.0]), of(w=[1.0, 1.0]), of(w=[1.0, 1.0]), FrozenUpdate({}, {}))
    one = step(of(w=[1.0, 1.0]), of(w=[4.0, 5.0]))
    assert replay_error(split, one) == pytest.approx(0.2)
    with pytest.raises(
        ConfigError,
        match=r"record = 0\.0: the recorded step changed no weight; record another step",
    ):
        replay_error(split, step(one.before, one.before))


def test_the_rounding_floor_is_what_the_weights_own_grid_leaves() -> None:
    """Numbers in [1, 2) stand 2⁻²³ apart in float32, those in [2, 4) twice as far."""
    before, after = torch.zeros(2), torch.tensor([1.0, -2.0])
    ulp = 2.0**-23
    expected = (ulp**2 + (2 * ulp) ** 2) ** 0.5 / 12**0.5 / 5**0.5
    assert rounding_floor(step({"w": before}, {"w": after})) == pytest.approx(expected)


def test_a_batch_holds_what_was_recorded_in_the_policys_precision(
    policy: PolicyFunction, record: StepRecord
) -> None:
    batch = record_batch(record, policy, [2, 0])
    assert list(batch.ids) == ["pair-2", "pair-0"]
    expected = [
        value
        for number in (2, 0)
        for side in ("chosen", "rejected")
        for value in getattr(record.examples[number], f"{side}_reference")
    ]
    assert batch.reference is not None and batch.reference.dtype == torch.float64
    assert batch.reference.tolist() == expected
    assert batch.side.tolist() == [CHOSEN, REJECTED] * 2
    assert batch.totals == step_totals(record.examples, DPO)


def test_denominators_count_what_an_objective_trains_on() -> None:
    examples = [pair(1, chosen=5, rejected=4), pair(2, chosen=3, rejected=7)]
    assert step_totals(examples, DPO) == Totals(examples=2, tokens=19, sequences=4)
    assert step_totals(examples, SFT) == Totals(examples=2, tokens=8, sequences=2)


def test_a_groups_batch_has_the_temperature_at_which_it_was_sampled(
    policy: PolicyFunction,
) -> None:
    completion = RecordedCompletion(encoded=encoded(1), advantage=[0.5] * 5, old=[-1.0] * 5)
    group = RecordedGroup(id="g", temperature=0.7, completions=(completion,))
    batch = objective_batch([group], GRPO, step_totals([group], GRPO), policy)
    assert batch.temperature == 0.7
    assert objective_batch([pair(1)], SFT, step_totals([pair(1)], SFT), policy).temperature == 1


def test_a_missing_reference_is_named_with_its_remedy(policy: PolicyFunction) -> None:
    one = pair(4)
    with pytest.raises(
        ConfigError,
        match="record example pair-4 = None: its objective needs the reference's "
        "log-probabilities; record them with the step",
    ):
        objective_batch([one], DPO, step_totals([one], DPO), policy)
    assert objective_batch([one], SFT, step_totals([one], SFT), policy).reference is None


def test_an_example_without_a_side_is_named(policy: PolicyFunction) -> None:
    lone = RecordedExample(id="lone", chosen=encoded(1), chosen_reference=[0.0] * 5)
    with pytest.raises(
        ConfigError, match="updating example lone = None: its objective needs a rejected response"
    ):
        objective_batch([lone], DPO, Totals(1, 5, 1), policy)


def test_a_dense_objective_reads_the_likeliest_tokens_too(policy: PolicyFunction) -> None:
    batch = collate([encoded(1), encoded(2, 6, 3)], 0)
    logits = policy.logits({}, batch)
    batch = dataclasses.replace(batch, top=top_tokens(logits, batch, 3))
    logps = torch.log_softmax(logits, dim=-1)
    dense = objective_logps(policy, {}, batch, SimpleNamespace(dense=True))  # type: ignore[arg-type]
    assert dense.shape == batch.targets.shape and batch.targets.shape[1] > 1
    torch.testing.assert_close(dense, logps.gather(1, batch.targets))
    plain = objective_logps(policy, {}, batch, SimpleNamespace(dense=False))  # type: ignore[arg-type]
    torch.testing.assert_close(plain, logps.gather(1, batch.token[:, None])[:, 0])


def padded(lengths: list[tuple[int, int]], sides: tuple[int, ...], bound: int) -> list[list[int]]:
    """The micro-batches of pairs with these lengths of their sequences."""
    examples = tuple(
        RecordedExample(
            id=str(number),
            chosen=Encoded(tuple(range(chosen)), 1),
            rejected=Encoded(tuple(range(rejected)), 1),
        )
        for number, (chosen, rejected) in enumerate(lengths)
    )
    return list(micro_batches(StepRecord(None, examples, {}, {}, {}), sides, bound))  # type: ignore[arg-type]


def test_micro_batches_stay_within_sequences_times_the_longest() -> None:
    # Two pairs are four sequences of at most 5 tokens, three are six.
    lengths = [(5, 4), (3, 5), (2, 2)]
    assert padded(lengths, (CHOSEN, REJECTED), 30) == [[0, 1, 2]]
    assert padded(lengths, (CHOSEN, REJECTED), 29) == [[0, 1], [2]]
    assert padded(lengths, (CHOSEN, REJECTED), 20) == [[0, 1], [2]]
    assert padded(lengths, (CHOSEN, REJECTED), 19) == [[0], [1], [2]]
    # What is longer than the bound stands alone; the next counts afresh.
    assert padded([(9, 9), (2, 2), (2, 2)], (CHOSEN, REJECTED), 8) == [[0], [1, 2]]
    assert padded(lengths, (CHOSEN,), 15) == [[0, 1, 2]]
    assert padded(lengths, (CHOSEN,), 14) == [[0, 1], [2]]


def test_a_step_is_replayed_in_forwards_of_the_asked_size(
    policy: PolicyFunction, record: StepRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    plain = split_module.record_batch

    def watched(record: StepRecord, policy: PolicyFunction, examples: list[int]):  # type: ignore[no-untyped-def]
        asked.append(examples)
        return plain(record, policy, examples)

    monkeypatch.setattr(split_module, "record_batch", watched)
    split_step(record, policy)
    assert asked == [[0, 1, 2]]
    asked.clear()
    split_step(record, policy, batch_tokens=1)
    assert asked == [[0], [1], [2]]


def test_a_replay_has_the_policys_precision(record: StepRecord) -> None:
    assert {tensor.dtype for tensor in record.before.values()} == {torch.float64}
    split = split_step(record, PolicyFunction(neox(), torch.float32))
    for part in (*split.parts().values(), split.update.scale, split.update.history):
        assert {tensor.dtype for tensor in part.values()} == {torch.float32}


def test_an_objective_of_one_side_leaves_the_other_still(policy: PolicyFunction) -> None:
    split = split_step(recorded(neox(), objective=SFTConfig(), count=len(pairs(2))), policy)
    assert not any(tensor.any() for tensor in split.from_rejected.values())
    assert any(tensor.any() for tensor in split.from_chosen.values())
