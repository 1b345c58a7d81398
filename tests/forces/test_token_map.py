from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dynolab.data.batches import CHOSEN, REJECTED, collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    build_token_map,
    central_difference,
    midpoint,
    split_step,
    token_forces,
)
from dynolab.forces.token_map import token_strings
from dynolab.objectives import DPOConfig, SFTConfig
from dynolab.training.config import OptimizerConfig, TrainConfig
from tests.forces.small_models import (
    encoded,
    llama,
    neox,
    pairs,
    relative,
    train_steps,
    with_reference,
)

SGD = OptimizerConfig(name="sgd", learning_rate=1e-2)
ADAMW = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1)
OBSERVED = encoded(77, prompt=4, response=6)


def recorded(model, objective=None, optimizer=ADAMW, steps=2):
    config = TrainConfig(
        objective=objective or DPOConfig(), optimizer=optimizer,
        engine={"kind": "plain", "ranks": 1},
    )  # fmt: skip
    examples = with_reference(model, pairs(3))
    return train_steps(model, config, examples, steps=steps).records[-1]


def single_token_change(record, policy, split, example, side, token):
    """−scale ⊙ ∇(loss through one response token), by autograd of a dense softmax.

    Its own route to the gradient: the sequence is run alone, the log-probability is taken from
    the logits at the place before the token, and c_l is written out for DPO.
    """
    one = record.examples[example]
    sequence = one.chosen if side == CHOSEN else one.rejected
    leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
    beta = record.facts.objective.beta

    def response_logps(which: Encoded) -> torch.Tensor:
        batch = collate([which], 0)
        logits = policy.logits(leaves, batch)
        dense = logits - logits.exp().sum(-1, keepdim=True).log()
        return torch.stack([dense[n, t] for n, t in enumerate(which.ids[which.prompt_length :])])

    with torch.no_grad():
        margin = beta * (
            response_logps(one.chosen).sum()
            - sum(one.chosen_reference)
            - response_logps(one.rejected).sum()
            + sum(one.rejected_reference)
        )
    rate = beta * (1 - torch.sigmoid(margin)) / len(record.examples)
    sign = 1 if side == CHOSEN else -1
    loss = -sign * rate * response_logps(sequence)[token]
    gradient = torch.autograd.grad(loss, list(leaves.values()))
    return {name: -split.update.scale[name] * g for name, g in zip(leaves, gradient, strict=True)}


@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
def test_a_step_on_one_token_alone_is_its_column(optimizer):
    """Sums over columns are blind to a shift; this is not. Differences are the other route."""
    model = neox()
    record = recorded(model, optimizer=optimizer)
    policy = PolicyFunction(model, torch.float64)
    split = split_step(record, policy)
    force = token_forces(record, policy, split.update, 1, OBSERVED)
    one = record.examples[1]
    place, batch = midpoint(record.before, record.after), collate([OBSERVED], 0)
    columns = [(CHOSEN, n) for n in range(one.chosen.response_length)]
    columns += [(REJECTED, n) for n in range(one.rejected.response_length)]
    assert force.shape == (6, len(columns))
    truth = torch.stack(
        [
            central_difference(
                policy, place, single_token_change(record, policy, split, 1, *column), batch
            )
            for column in columns
        ],
        dim=1,
    )
    assert relative(force, truth) < 1e-6
    for mutated in (-force, force.roll(1, dims=1), force.roll(1, dims=0)):
        assert relative(mutated, truth) > 0.1


def test_columns_add_up_to_the_example_s_share_of_the_step():
    """Over a batch of one example, to from_chosen and from_rejected themselves."""
    model = neox()
    whole = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(whole, policy).update
    alone = dataclasses.replace(whole, examples=whole.examples[1:2])
    split = split_step(alone, policy)
    chosen_part, rejected_part = policy.change_along(
        midpoint(alone.before, alone.after),
        [split.from_chosen, split.from_rejected],
        collate([OBSERVED], 0),
    )
    force = token_forces(alone, policy, split.update, 0, OBSERVED)
    border = alone.examples[0].chosen.response_length
    assert relative(force[:, :border].sum(1), chosen_part) < 1e-10
    assert relative(force[:, border:].sum(1), rejected_part) < 1e-10

    by_example = [token_forces(whole, policy, update, n, OBSERVED) for n in range(3)]
    step = split_step(whole, policy)
    both = policy.change_along(
        midpoint(whole.before, whole.after),
        [step.from_chosen, step.from_rejected],
        collate([OBSERVED], 0),
    ).sum(0)
    assert relative(sum(map_.sum(1) for map_ in by_example), both) < 1e-10


def test_cutting_the_observed_answer_leaves_its_rows_alone():
    """Causality: what stands after token m has no part in the push on it."""
    model = neox()
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(record, policy).update
    force = token_forces(record, policy, update, 0, OBSERVED)
    cut = Encoded(OBSERVED.ids[:-2], OBSERVED.prompt_length)
    assert relative(token_forces(record, policy, update, 0, cut), force[:-2]) < 1e-10


def test_llama_s_tied_map_adds_up_in_fp32():
    model = llama()
    record = recorded(model)
    policy = PolicyFunction(model)
    alone = dataclasses.replace(record, examples=record.examples[:1])
    split = split_step(alone, policy)
    force = token_forces(alone, policy, split.update, 0, OBSERVED)
    parts = policy.change_along(
        midpoint(alone.before, alone.after),
        [split.from_chosen, split.from_rejected],
        collate([OBSERVED], 0),
    )
    assert relative(force.sum(1), parts.sum(0)) < 1e-4


def test_sft_pushes_its_own_answer_up():
    model = neox()
    record = recorded(model, SFTConfig(), SGD, steps=1)
    policy = PolicyFunction(model, torch.float64)
    update = split_step(record, policy).update
    own = record.examples[0].chosen
    force = token_forces(record, policy, update, 0, own, at=record.before)
    assert force.shape == (own.response_length, own.response_length)
    assert (force.diagonal() > 0).all()
    torch.testing.assert_close(force, force.T)


class Letters:
    """Knows token n as <n>."""

    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<{token}>"


def test_the_written_map_names_its_tokens():
    model = neox()
    record = recorded(model)
    policy = PolicyFunction(model, torch.float64)
    one = record.examples[2]
    made = build_token_map(
        record, policy, Letters(), stage="dpo", updating_id=one.id, observed_id="other",
        observed=OBSERVED,
    )  # fmt: skip
    assert made.observed_tokens == [f"<{token}>" for token in OBSERVED.ids[4:]]
    assert len(made.chosen_tokens) == one.chosen.response_length
    assert len(made.rejected_tokens) == one.rejected.response_length
    assert len(made.force) == 6
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)
    with pytest.raises(ConfigError, match="updating_id"):
        build_token_map(
            record, policy, Letters(), stage="dpo", updating_id="nobody", observed_id="other",
            observed=OBSERVED,
        )  # fmt: skip


def test_tokens_are_shown_with_the_spaces_and_bytes_that_decoding_loses() -> None:
    vocabulary = {"<unk>": 0, "</s>": 1, "▁": 2, "▁a": 3, "b": 4, "<0xE2>": 5}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", unk_token="<unk>")
    shown = token_strings(Encoded((4, 2, 3, 4, 5, 0, 1), 1), tokenizer)
    assert shown == [" ", " a", "b", "<0xE2>", "<unk>", "</s>"]
