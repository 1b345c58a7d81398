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
from dynolab.forces.step.split import UpdateSplit
from dynolab.forces.step.token_map import example_pushes, token_strings
from dynolab.objectives import GRPOConfig
from dynolab.results.study import TokenMap
from dynolab.training.recorded_examples import RecordedCompletion
from dynolab.training.step_record import RecordedGroup, StepRecord
from tests.forces.small_models import (
    Letters,
    encoded,
    neox,
    read,
    recorded,
    relative,
)

OBSERVED = encoded(77, prompt=4, response=6)


@pytest.fixture(scope="module")
def record() -> StepRecord:
    return recorded(neox(), count=3)


def written(record: StepRecord, policy: PolicyFunction, updating_id: str) -> TokenMap:
    return build_token_map(
        record,
        policy,
        Letters(),
        stage=record.facts.objective.name,
        updating_id=updating_id,
        observed_id="other",
        observed=OBSERVED,
    )


def along_parts(record: StepRecord, policy: PolicyFunction, split: UpdateSplit) -> torch.Tensor:
    """First-order change of the observed answer through chosen and through rejected answers."""
    return policy.change_along(
        midpoint(record.before, record.after),
        [split.from_chosen, split.from_rejected],
        collate([OBSERVED], 0),
    )


def test_columns_add_up_to_the_example_s_share_of_the_step(record, policy):
    """Over a batch of one example, to from_chosen and from_rejected themselves."""
    alone = dataclasses.replace(record, examples=record.examples[1:2])
    split = split_step(alone, policy)
    chosen_part, rejected_part = along_parts(alone, policy, split)
    force = token_forces(alone, policy, split.update, 0, OBSERVED)
    border = alone.examples[0].chosen.response_length
    assert relative(force[:, :border].sum(1), chosen_part) < 1e-10
    assert relative(force[:, border:].sum(1), rejected_part) < 1e-10

    step = split_step(record, policy)
    by_example = [token_forces(record, policy, step.update, n, OBSERVED) for n in range(3)]
    both = along_parts(record, policy, step).sum(0)
    assert relative(sum(force.sum(1) for force in by_example), both) < 1e-10


@pytest.mark.parametrize("batch_tokens", [4_096, 30])
def test_an_example_s_push_is_the_sum_of_its_map(record, policy, batch_tokens):
    update = split_step(record, policy).update
    pushes = example_pushes(record, policy, update, OBSERVED, batch_tokens=batch_tokens)
    maps = [token_forces(record, policy, update, n, OBSERVED).sum() for n in range(3)]
    assert relative(pushes, torch.stack(maps)) < 1e-10


def test_the_written_map_names_its_tokens(record, policy):
    example = record.examples[2]
    force = token_forces(record, policy, split_step(record, policy).update, 2, OBSERVED)
    assert force.shape == (6, example.chosen.response_length + example.rejected.response_length)
    assert written(record, policy, example.id) == TokenMap(
        stage="dpo",
        step=record.facts.step,
        observed_id="other",
        updating_id=example.id,
        learning_rate=record.facts.learning_rate,
        observed_tokens=read(OBSERVED),
        chosen_tokens=read(example.chosen),
        rejected_tokens=read(example.rejected),
        force=force.tolist(),
    )
    named = r"updating_id = 'nobody': give an example of the step: \['pair-0', 'pair-1', 'pair-2'\]"
    with pytest.raises(ConfigError, match=named):
        written(record, policy, "nobody")


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


def test_a_groups_map_lists_all_completions_that_were_pushed_up_first(record, policy) -> None:
    first, second, _ = record.examples
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
    made = written(grouped, policy, "group")
    assert made.chosen_tokens == read(first.chosen) + read(second.chosen)
    assert made.rejected_tokens == read(first.rejected) + read(second.rejected)
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)


def test_a_parameter_that_a_response_does_not_reach_does_not_move(record, policy) -> None:
    model = neox()
    idle = {"idle": torch.ones(2, dtype=torch.float64)}
    model.register_parameter("idle", torch.nn.Parameter(idle["idle"].clone()))
    wider = dataclasses.replace(
        record, before={**record.before, **idle}, after={**record.after, **idle}
    )
    idling = PolicyFunction(model, torch.float64)
    split = split_step(wider, idling)
    assert split.from_chosen["idle"].tolist() == split.from_rejected["idle"].tolist() == [0, 0]
    expected = token_forces(record, policy, split_step(record, policy).update, 1, OBSERVED)
    assert relative(token_forces(wider, idling, split.update, 1, OBSERVED), expected) < 1e-12
