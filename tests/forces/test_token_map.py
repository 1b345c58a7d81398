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
from dynolab.forces.token_map import token_strings
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
    assert len(made.chosen_tokens) == one.chosen.response_length
    assert len(made.rejected_tokens) == one.rejected.response_length
    assert len(made.force) == 6
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)
    with pytest.raises(ConfigError, match="updating_id"):
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
