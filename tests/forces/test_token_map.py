from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    build_token_map,
    midpoint,
    split_step,
    token_forces,
)
from dynolab.forces.step.token_map import token_strings
from dynolab.objectives import GRPOConfig
from dynolab.training.record import RecordedGroup
from dynolab.training.recorded import RecordedCompletion
from tests.forces.small_models import (
    encoded,
    neox,
    recorded,
    relative,
)

OBSERVED = encoded(77, prompt=4, response=6)


def test_columns_add_up_to_the_example_s_share_of_the_step():
    """Over a batch of one example, to from_chosen and from_rejected themselves."""
    model = neox()
    whole = recorded(model, count=3)
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


class Letters:
    """Knows token n as <n>."""

    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<{token}>"


def read(sequence: Encoded) -> list[str]:
    return [f"<{token}>" for token in sequence.ids[sequence.prompt_length :]]


def test_the_written_map_names_its_tokens():
    model = neox()
    record = recorded(model, count=3)
    policy = PolicyFunction(model, torch.float64)
    one = record.examples[2]
    made = build_token_map(
        record,
        policy,
        Letters(),
        stage="dpo",
        updating_id=one.id,
        observed_id="other",
        observed=OBSERVED,
    )
    assert made.observed_tokens == [f"<{token}>" for token in OBSERVED.ids[4:]]
    assert made.chosen_tokens == read(one.chosen)
    assert made.rejected_tokens == read(one.rejected)
    assert (made.stage, made.step) == ("dpo", record.facts.step)
    assert (made.observed_id, made.updating_id) == ("other", one.id)
    assert made.learning_rate == record.facts.learning_rate
    force = token_forces(record, policy, split_step(record, policy).update, 2, OBSERVED)
    assert made.force == force.tolist()
    assert len(made.force) == 6
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)
    named = r"updating_id = 'nobody': name an example of the step: \['pair-0', 'pair-1', 'pair-2'\]"
    with pytest.raises(ConfigError, match=named):
        build_token_map(
            record,
            policy,
            Letters(),
            stage="dpo",
            updating_id="nobody",
            observed_id="other",
            observed=OBSERVED,
        )


def test_tokens_are_shown_with_the_spaces_and_bytes_that_decoding_loses() -> None:
    vocabulary = {"<unk>": 0, "</s>": 1, "▁": 2, "▁a": 3, "b": 4, "<0xE2>": 5}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    own.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", unk_token="<unk>")
    shown = token_strings(Encoded((4, 2, 3, 4, 5, 0, 1), 1), tokenizer)
    assert shown == [" ", " a", "b", "<0xE2>", "<unk>", "</s>"]


def test_a_space_that_decoding_keeps_is_shown_once() -> None:
    own = Tokenizer(models.BPE(vocab={"▁a": 0, "b": 1}, merges=[]))
    own.decoder = decoders.Replace("▁", " ")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own)
    assert token_strings(Encoded((0, 1), 0), tokenizer) == [" a", "b"]


def test_a_groups_map_lists_all_completions_that_were_pushed_up_first() -> None:
    record = recorded(neox(), count=2)
    first, second = record.examples
    group = RecordedGroup(
        id="group",
        completions=tuple(
            RecordedCompletion(
                encoded=sequence,
                advantage=[advantage] * sequence.response_length,
                old=[-1.0] * sequence.response_length,
            )
            for sequence, advantage in (
                (first.chosen, 0.5),
                (first.rejected, -1.0),
                (second.chosen, 0.4),
                (second.rejected, -0.2),
            )
        ),
    )
    facts = record.facts.model_copy(update={"objective": GRPOConfig()})
    grouped = dataclasses.replace(record, facts=facts, examples=(group,))
    policy = PolicyFunction(neox(), torch.float64)
    made = build_token_map(
        grouped,
        policy,
        Letters(),
        stage="grpo",
        updating_id="group",
        observed_id="other",
        observed=OBSERVED,
    )
    assert made.chosen_tokens == read(first.chosen) + read(second.chosen)
    assert made.rejected_tokens == read(first.rejected) + read(second.rejected)
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)


def test_a_parameter_that_a_response_does_not_reach_does_not_move() -> None:
    model = neox()
    record = recorded(model, count=2)
    idle = {"idle": torch.ones(2, dtype=torch.float64)}
    model.register_parameter("idle", torch.nn.Parameter(idle["idle"].clone()))
    wider = dataclasses.replace(
        record, before={**record.before, **idle}, after={**record.after, **idle}
    )
    policy = PolicyFunction(model, torch.float64)
    split = split_step(wider, policy)
    assert split.from_chosen["idle"].tolist() == split.from_rejected["idle"].tolist() == [0, 0]
    plain = PolicyFunction(neox(), torch.float64)
    expected = token_forces(record, plain, split_step(record, plain).update, 1, OBSERVED)
    assert relative(token_forces(wider, policy, split.update, 1, OBSERVED), expected) < 1e-12
