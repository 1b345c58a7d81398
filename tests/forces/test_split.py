from __future__ import annotations

import dataclasses

import pytest
import torch

from dynolab.data.batches import CHOSEN, REJECTED, collate
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
from dynolab.forces.step.one_step import norm
from dynolab.objectives import DPOConfig, SFTConfig, build_objective
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.record import StepRecord
from tests.forces.small_models import (
    encoded,
    llama,
    neox,
    pair,
    pairs,
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
    model, optimizer: str, objective: str, clip_norm: float = 0.5, steps: int = 3, **changes
):
    examples = with_reference(model, pairs(4))
    config = TrainConfig(
        objective=OBJECTIVES[objective],
        optimizer=OPTIMIZERS[optimizer].model_copy(update=changes),
        clip_norm=clip_norm,
        engine={"kind": "plain", "ranks": 1},
    )
    return train_steps(model, config, examples, steps=steps)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_real_torch_steps_are_replayed_in_fp64(optimizer):
    model = neox()
    run = trained(model, optimizer, "dpo", clip_norm=0.01)
    policy = PolicyFunction(model, torch.float64)
    for record in run.records:
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
    run = trained(model, optimizer, "dpo", clip_norm=100.0, epsilon=1e-6)
    for record in run.records:
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
    record = trained(model, "adamw", "dpo", clip_norm=100.0).records[-1]
    policy = PolicyFunction(model)
    split = split_step(record, policy)
    name = "gpt_neox.layers.0.attention.query_key_value.bias"
    gap = split.total()[name] - change_of(record.before, record.after)[name]
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
def test_sides_add_up_to_the_gradient_of_the_loss(objective):
    model = neox()
    record = trained(model, "sgd", objective, steps=1).records[0]
    policy = PolicyFunction(model, torch.float64)
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
def test_forces_of_the_parts_add_up_to_the_force_of_the_whole(optimizer):
    model = neox()
    record = trained(model, optimizer, "dpo").records[-1]
    policy = PolicyFunction(model, torch.float64)
    split = split_step(record, policy)
    place, d = midpoint(record.before, record.after), change_of(record.before, record.after)
    batch = collate([encoded(50), encoded(51)], 0)
    whole, *parts = policy.change_along(place, [d, *split.parts().values()], batch)
    assert relative(sum(parts), whole) < 1e-9


def test_history_is_what_a_step_without_a_gradient_does():
    model = neox()
    record = trained(model, "sgd momentum decay", "dpo").records[-1]
    split = split_step(record, PolicyFunction(model, torch.float64))
    eta, config = record.facts.learning_rate, record.facts.optimizer
    for name, w in record.before.items():
        buffer = record.state[name]["momentum_buffer"]
        torch.testing.assert_close(
            split.from_history[name], -eta * (config.momentum * buffer + config.weight_decay * w)
        )


def test_plain_sgd_and_a_first_adam_step_have_no_history():
    for optimizer in ("sgd", "adamw"):
        model = neox()
        record = trained(model, optimizer, "dpo", steps=1).records[0]
        split = split_step(record, PolicyFunction(model, torch.float64))
        assert float(norm(split.from_history)) == 0


def test_chosen_lifts_and_rejected_lowers_their_own_answers():
    model = neox()
    examples = with_reference(model, [pair(1)])
    config = TrainConfig(
        objective=DPOConfig(), optimizer=OPTIMIZERS["sgd"], engine={"kind": "plain", "ranks": 1}
    )
    record = train_steps(model, config, examples, steps=1).records[0]
    policy = PolicyFunction(model, torch.float64)
    split, batch = split_step(record, policy), record_batch(record, policy, [0])
    chosen, rejected = policy.change_along(
        record.before, [split.from_chosen, split.from_rejected], batch
    )
    assert chosen[batch.token_side == CHOSEN].sum() > 0
    assert rejected[batch.token_side == REJECTED].sum() < 0


@pytest.mark.parametrize("wrong", ["sign", "clip", "rate", "state", "reference", "step"])
def test_a_wrong_replay_is_noticed(wrong):
    model = neox()
    record = trained(model, "adamw", "dpo").records[-1]
    policy = PolicyFunction(model, torch.float64)
    facts, examples, state = record.facts, record.examples, record.state
    if wrong == "sign":
        examples = tuple(
            example.model_copy(
                update={
                    "chosen": example.rejected,
                    "rejected": example.chosen,
                    "chosen_reference": example.rejected_reference,
                    "rejected_reference": example.chosen_reference,
                }
            )
            for example in examples
        )
    elif wrong == "clip":
        facts = facts.model_copy(update={"clip_factor": 1.0})
    elif wrong == "rate":
        facts = facts.model_copy(update={"learning_rate": facts.learning_rate * 0.99})
    elif wrong == "step":
        facts = facts.model_copy(update={"step": facts.step + 1})
    elif wrong == "state":
        state = {}
    else:
        examples = tuple(
            example.model_copy(update={"chosen_reference": [0.0] * example.chosen.response_length})
            for example in examples
        )
    broken = dataclasses.replace(record, facts=facts, examples=examples, state=state)
    assert replay_error(split_step(broken, policy), broken) > 1e-3


def test_a_saved_record_replays_alike(tmp_path):
    model = llama()
    record = trained(model, "adamw", "dpo").records[-1]
    record.save(tmp_path / "step")
    loaded = StepRecord.load(tmp_path / "step")
    policy = PolicyFunction(model)
    assert replay_error(split_step(loaded, policy), loaded) == pytest.approx(
        replay_error(split_step(record, policy), record)
    )


def test_records_that_cannot_be_split_say_why():
    model = neox()
    record = trained(model, "sgd", "dpo", steps=1).records[0]
    policy = PolicyFunction(model, torch.float64)
    still = dataclasses.replace(record, after=record.before)
    with pytest.raises(ConfigError, match="no weight"):
        replay_error(split_step(record, policy), still)
    bare = [example.model_copy(update={"chosen_reference": None}) for example in record.examples]
    with pytest.raises(ConfigError, match="reference"):
        split_step(dataclasses.replace(record, examples=tuple(bare)), policy)
