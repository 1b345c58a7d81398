"""Recorded steps replayed and split into parts, and by hand the pieces a replay is made of."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, Totals, collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    change_of,
    midpoint,
    record_batch,
    replay_error,
    rounding_floor,
    side_gradients,
    split_step,
)
from dynolab.forces.step import split as split_module
from dynolab.forces.step.one_step import norm
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import (
    SideGradients,
    UpdateSplit,
    micro_batches,
    objective_batch,
    objective_logps,
    step_totals,
)
from dynolab.likelihood.token_logps import top_tokens
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, build_objective
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.recorded_examples import RecordedCompletion
from dynolab.training.step_record import RecordedExample, RecordedGroup, StepRecord
from tests.forces.small_models import (
    encoded,
    llama,
    neox,
    pair,
    pairs,
    recorded,
    relative,
    train_steps,
    with_reference,
)

OPTIMIZERS = {
    "sgd": OptimizerConfig(name="sgd", learning_rate=1e-2),
    "sgd momentum decay": OptimizerConfig(
        name="sgd", learning_rate=1e-2, momentum=0.9, weight_decay=0.1
    ),
    "adamw": OptimizerConfig(name="adamw", learning_rate=1e-3),
    "adamw decay": OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1),
    "rmsprop": OptimizerConfig(name="rmsprop", learning_rate=1e-3),
    "rmsprop momentum decay": OptimizerConfig(
        name="rmsprop", learning_rate=1e-3, momentum=0.9, weight_decay=0.1
    ),
}
OBJECTIVES = {
    "sft": SFTConfig(),
    "sft token mean": SFTConfig(normalise="token_mean"),
    "dpo": DPOConfig(beta=0.5),
}


def trained(
    optimizer: str, objective: str = "dpo", *, model=None, clip_norm=0.5, steps=3, **changes
) -> list[StepRecord]:
    """Records of steps of a small model on four pairs."""
    model = model or neox()
    config = TrainConfig(
        objective=OBJECTIVES[objective],
        optimizer=OPTIMIZERS[optimizer].model_copy(update=changes),
        clip_norm=clip_norm,
        engine={"kind": "plain", "ranks": 1},
    )
    return train_steps(model, config, with_reference(model, pairs(4)), steps=steps).records


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_real_torch_steps_are_replayed_in_fp64(policy, optimizer):
    for record in trained(optimizer, clip_norm=0.01):
        assert record.facts.clip_factor < 1
        assert replay_error(split_step(record, policy), record) < 1e-9


@pytest.mark.parametrize("build", [neox, llama])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_real_torch_steps_are_replayed_in_fp32(optimizer, build):
    """As exactly as float32 stores the weights, but for weights whose true gradient is zero.

    An ε above the rounding of these gradients (1e-9): below it, an adaptive step of a weight that
    hardly matters is made of what the processor rounds.
    """
    model = build(dtype=torch.float32)
    for record in trained(optimizer, model=model, clip_norm=100.0, epsilon=1e-6):
        split = split_step(record, PolicyFunction(model))
        if build is neox:
            # Softmax cancels key biases; adaptive optimizers step along their rounding noise.
            noisy = [name for name in record.before if name.endswith("query_key_value.bias")]
            assert len(noisy) == 2
            split, record = without(split, record, noisy)
        exact = OPTIMIZERS[optimizer].name == "sgd"
        allowed = 1.1 * rounding_floor(record) + (1e-6 if exact else 5e-5)
        assert replay_error(split, record) < allowed


def test_only_key_biases_escape_the_replay_of_an_adaptive_step():
    model = neox(dtype=torch.float32)
    record = trained("adamw", model=model, clip_norm=100.0)[-1]
    name = "gpt_neox.layers.0.attention.query_key_value.bias"
    replayed = split_step(record, PolicyFunction(model)).total()[name]
    gap = replayed - change_of(record.before, record.after)[name]
    query, key, value = gap.view(4, 3, 8).abs().amax(dim=(0, 2))
    assert key > 100 * max(query, value)


def without(split, record, names):
    """The step without some parameters."""

    def rest(tensors):
        return {name: w for name, w in tensors.items() if name not in names}

    parts = {name: rest(part) for name, part in split.parts().items()}
    smaller = dataclasses.replace(
        record, before=rest(record.before), after=rest(record.after), state=rest(record.state)
    )
    return dataclasses.replace(split, **parts), smaller


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sides_add_up_to_the_gradient_of_the_loss(policy, objective):
    (record,) = trained("sgd", objective, steps=1)
    batch = record_batch(record, policy, range(4))
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    loss = build_objective(record.facts.objective).loss(policy.logps(leaves, batch), batch)
    truth = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    whole = side_gradients(record, policy)
    parts = side_gradients(record, policy, batch_tokens=1)
    for gradients in (whole, parts):
        assert norm(change_of(gradients.total(), truth)) / norm(truth) < 1e-10
    assert (norm(whole.rejected) > 0) == (objective == "dpo")
    assert float(norm(truth)) == pytest.approx(record.facts.grad_norm, rel=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_forces_of_the_parts_add_up_to_the_force_of_the_whole(policy, optimizer):
    record = trained(optimizer)[-1]
    split = split_step(record, policy)
    place, d = midpoint(record.before, record.after), change_of(record.before, record.after)
    batch = collate([encoded(50), encoded(51)], 0)
    whole, *parts = policy.change_along(place, [d, *split.parts().values()], batch)
    assert relative(sum(parts), whole) < 1e-9


def test_history_is_what_a_step_without_a_gradient_does(policy):
    record = trained("sgd momentum decay", steps=6)[-1]
    history = split_step(record, policy).from_history
    eta, config = record.facts.learning_rate, record.facts.optimizer
    for name, w in record.before.items():
        buffer = record.state[name]["momentum_buffer"]
        expected = -eta * (config.momentum * buffer + config.weight_decay * w)
        torch.testing.assert_close(history[name], expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_plain_sgd_and_a_first_adam_step_have_no_history(policy, optimizer):
    (record,) = trained(optimizer, steps=1)
    assert float(norm(split_step(record, policy).from_history)) == 0


def test_chosen_lifts_and_rejected_lowers_their_own_answers(policy):
    record = recorded(neox(), OPTIMIZERS["sgd"], count=1, steps=1)
    split, batch = split_step(record, policy), record_batch(record, policy, [0])
    chosen, rejected = policy.change_along(
        record.before, [split.from_chosen, split.from_rejected], batch
    )
    assert chosen[batch.token_side == CHOSEN].sum() > 0
    assert rejected[batch.token_side == REJECTED].sum() < 0


def swapped(example: RecordedExample) -> RecordedExample:
    return RecordedExample(
        id=example.id,
        chosen=example.rejected,
        rejected=example.chosen,
        chosen_reference=example.rejected_reference,
        rejected_reference=example.chosen_reference,
        wins=example.wins,
    )


def without_reference(example: RecordedExample) -> RecordedExample:
    zeros = [0.0] * example.chosen.response_length
    return example.model_copy(update={"chosen_reference": zeros})


@pytest.mark.parametrize("wrong", ["sign", "clip", "rate", "state", "reference", "step"])
def test_a_wrong_replay_is_noticed(policy, wrong):
    record = trained("adamw")[-1]
    facts = record.facts
    changes = {
        "sign": {"examples": tuple(map(swapped, record.examples))},
        "clip": {"facts": facts.model_copy(update={"clip_factor": 1.0})},
        "rate": {"facts": facts.model_copy(update={"learning_rate": 0.99 * facts.learning_rate})},
        "step": {"facts": facts.model_copy(update={"step": facts.step + 1})},
        "state": {"state": {}},
        "reference": {"examples": tuple(map(without_reference, record.examples))},
    }
    broken = dataclasses.replace(record, **changes[wrong])
    assert replay_error(split_step(broken, policy), broken) > 1e-3


def test_a_saved_record_replays_alike(tmp_path):
    policy = PolicyFunction(llama())
    record = trained("adamw", model=llama())[-1]
    record.save(tmp_path / "step")
    errors = [
        replay_error(split_step(read, policy), read)
        for read in (record, StepRecord.load(tmp_path / "step"))
    ]
    assert errors[1] == pytest.approx(errors[0])


DPO, SFT, GRPO = (build_objective(config) for config in (DPOConfig(), SFTConfig(), GRPOConfig()))


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
    recorded_step = step(of(w=[1.0, 1.0]), of(w=[4.0, 5.0]))
    assert replay_error(split, recorded_step) == pytest.approx(0.2)
    with pytest.raises(
        ConfigError,
        match=r"record = 0\.0: the recorded step changed no weight; record another step",
    ):
        replay_error(split, step(recorded_step.before, recorded_step.before))


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
    example = pair(4)
    with pytest.raises(
        ConfigError,
        match="record example pair-4 = None: its objective needs the reference's "
        "log-probabilities; record them with the step",
    ):
        objective_batch([example], DPO, step_totals([example], DPO), policy)
    assert objective_batch([example], SFT, step_totals([example], SFT), policy).reference is None


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


LENGTHS, BOTH = [(5, 4), (3, 5), (2, 2)], (CHOSEN, REJECTED)


@pytest.mark.parametrize(
    ("lengths", "sides", "bound", "batches"),
    [
        # Two pairs are four sequences of at most 5 tokens, three are six.
        (LENGTHS, BOTH, 30, [[0, 1, 2]]),
        (LENGTHS, BOTH, 29, [[0, 1], [2]]),
        (LENGTHS, BOTH, 20, [[0, 1], [2]]),
        (LENGTHS, BOTH, 19, [[0], [1], [2]]),
        # What is longer than the bound stands alone; the next counts afresh.
        ([(9, 9), (2, 2), (2, 2)], BOTH, 8, [[0], [1, 2]]),
        (LENGTHS, (CHOSEN,), 15, [[0, 1, 2]]),
        (LENGTHS, (CHOSEN,), 14, [[0, 1], [2]]),
    ],
)
def test_micro_batches_stay_within_sequences_times_the_longest(
    lengths: list[tuple[int, int]], sides: tuple[int, ...], bound: int, batches: list[list[int]]
) -> None:
    assert padded(lengths, sides, bound) == batches


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
    split = split_step(record, PolicyFunction(neox(), torch.float32))
    parts = (*split.parts().values(), split.update.scale, split.update.history)
    assert {w.dtype for w in record.before.values()} == {torch.float64}
    assert {w.dtype for part in parts for w in part.values()} == {torch.float32}


def test_an_objective_of_one_side_leaves_the_other_still(policy: PolicyFunction) -> None:
    split = split_step(recorded(neox(), objective=SFTConfig()), policy)
    assert not any(tensor.any() for tensor in split.from_rejected.values())
    assert any(tensor.any() for tensor in split.from_chosen.values())
