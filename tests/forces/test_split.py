"""Recorded steps replayed and split into parts, and by hand the pieces a replay is made of."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, Totals
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    change_of,
    record_batch,
    replay_error,
    rounding_floor,
    side_gradients,
    split_step,
)
from dynolab.forces.step.one_step import norm_of
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import (
    PARTS,
    UpdateSplit,
    micro_batches,
    objective_batch,
    step_totals,
)
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, build_objective
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import RecordedExample, StepRecord
from tests.forces.small_models import (
    encoded,
    llama,
    neox,
    pair,
    recorded,
    trained,
)
from tests.objectives.test_forces import BY_NAME

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
OBJECTIVES = {name: config for name, config in BY_NAME.items() if name != "sppo-soft"}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_real_torch_steps_are_replayed_in_fp64(policy, optimizer):
    for record in trained(OPTIMIZERS[optimizer], steps=3, clip_norm=0.01):
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
    config = OPTIMIZERS[optimizer].model_copy(update={"epsilon": 1e-6})
    for record in trained(config, model=model, steps=3, clip_norm=100.0):
        split = split_step(record, PolicyFunction(model))
        if build is neox:
            # Softmax cancels key biases; adaptive optimizers step along their rounding noise.
            noisy = [name for name in record.before if name.endswith("query_key_value.bias")]
            assert len(noisy) == 2
            split, record = without(split, record, noisy)
        # The first step divides by |g| alone: what rounds in g where its parts cancel is in Δθ.
        adaptive = 5e-5 if record.facts.step else 1e-4
        beside = 1e-6 if OPTIMIZERS[optimizer].name == "sgd" else adaptive
        assert replay_error(split, record) < 1.1 * rounding_floor(record) + beside


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
    (record,) = trained(OPTIMIZERS["sgd"], OBJECTIVES[objective], steps=1)
    batch = record_batch(record, policy, range(4))
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    loss = build_objective(record.facts.objective).loss(policy.logps(leaves, batch), batch)
    truth = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    whole = side_gradients(record, policy)
    parts = side_gradients(record, policy, batch_tokens=1)
    for gradients in (whole, parts):
        total = {name: g + gradients.rejected[name] for name, g in gradients.chosen.items()}
        gap = change_of(total, truth)
        assert norm_of(gap.values()) / norm_of(truth.values()) < 1e-10
    sides = len(build_objective(record.facts.objective).sides)
    pushed_down = sides == 2 and objective != "dpo-positive-only"
    assert (norm_of(whole.rejected.values()) > 0) == pushed_down
    assert float(norm_of(truth.values())) == pytest.approx(record.facts.grad_norm, rel=1e-9)


def swapped(example: RecordedExample) -> RecordedExample:
    return RecordedExample(
        id=example.id,
        chosen=example.rejected,
        rejected=example.chosen,
        chosen_reference=example.rejected_reference,
        rejected_reference=example.chosen_reference,
        wins=example.wins,
    )


@pytest.mark.parametrize("wrong", ["sign", "clip", "rate", "state", "reference", "step"])
def test_a_wrong_replay_is_noticed(policy, wrong):
    record = trained(OPTIMIZERS["adamw"], steps=3)[-1]
    facts = record.facts
    changes = {
        "sign": {"examples": tuple(map(swapped, record.examples))},
        "clip": {"facts": facts.model_copy(update={"clip_factor": 1.0})},
        "rate": {"facts": facts.model_copy(update={"learning_rate": 0.99 * facts.learning_rate})},
        "step": {"facts": facts.model_copy(update={"step": facts.step + 1})},
        "state": {"state": {}},
        "reference": {
            "examples": tuple(
                one.model_copy(update={"chosen_reference": [0.0] * one.chosen.response_length})
                for one in record.examples
            )
        },
    }
    broken = dataclasses.replace(record, **changes[wrong])
    assert replay_error(split_step(broken, policy), broken) > 1e-3


DPO, SFT, GRPO = (build_objective(config) for config in (DPOConfig(), SFTConfig(), GRPOConfig()))


@pytest.fixture(scope="module")
def record() -> StepRecord:
    return recorded(neox(), count=3)


def of(**tensors: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in tensors.items()}


def step(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> StepRecord:
    """A record of which the weights alone matter."""
    return StepRecord(None, (), before, after, {})  # type: ignore[arg-type]


def test_a_replay_error_is_the_gap_relative_to_the_change() -> None:
    # The change is (3, 4), the replay (3, 3): a gap of 1 in 5.
    parts = {name: of(w=[0.75, 0.75]) for name in PARTS}
    split = UpdateSplit(**parts, update=FrozenUpdate({}), gradient={})
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
    assert step_totals(examples, DPO) == Totals(2, tokens=19, sequences=4, chosen_tokens=8)
    assert step_totals(examples, SFT) == Totals(2, tokens=8, sequences=2, chosen_tokens=8)


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
    return list(micro_batches(examples, sides, bound))


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
