"""The worlds whose prompts are solved: by one of two strategies, or in several steps."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from dynolab.data.rows import PromptRow
from dynolab.data.sources.load import DataConfig, load_data, load_prompts
from dynolab.data.world.strategies import (
    HABIT,
    LETTERS,
    OTHER,
    StrategiesConfig,
    build_strategies,
    carried_out,
    ways,
)
from dynolab.data.world.sums import CARRY, RESULT, SumsConfig, build_sums, carries, worked_out
from dynolab.data.world.world import WorldConfig
from dynolab.errors import ConfigError
from dynolab.rollouts.rewards import ends_with, exact

STRATEGIES = StrategiesConfig(seed=3, train_pairs=40, heldout_pairs=20, corpus_rows=4000)
SUMS = SumsConfig(seed=3, train_pairs=40, heldout_pairs=20, corpus_rows=2000)


@pytest.mark.parametrize("config", [STRATEGIES, SUMS], ids=lambda config: config.name)
def test_equal_seeds_give_equal_worlds_of_new_prompts(config) -> None:
    data = DataConfig(world=config)
    rows, again = load_data(data), load_data(data)
    assert (rows.pairs, rows.probes) == (again.pairs, again.probes)
    assert rows.world is not None
    prompts = [row.prompt for row in rows.pairs + rows.heldout]
    assert len(set(prompts)) == len(prompts) == 60
    assert not set(prompts) & {row.prompt for row in rows.world.corpus}
    tokenizer = rows.world.tokenizer()
    texts = [row.prompt + row.chosen + str(row.rejected) for row in rows.pairs]
    texts += [row.prompt + row.chosen for row in rows.world.corpus]
    assert all(tokenizer.unk_token_id not in tokenizer(text).input_ids for text in texts)


def test_a_strategy_solves_its_share_of_prompts_in_both_splits_and_the_habit_is_as_set() -> None:
    world = build_strategies(STRATEGIES)
    for rows in (world.pairs, world.heldout):
        assert sum(row.chosen.split()[0] == HABIT for row in rows) == 0.6 * len(rows)
        assert {(row.chosen.split()[0], str(row.rejected).split()[0]) for row in rows} == {
            (HABIT, OTHER),
            (OTHER, HABIT),
        }
    shown = [(row.prompt.split()[1:-1], row.chosen.split()) for row in world.corpus]
    habit = sum(words[0] == HABIT for _, words in shown) / len(shown)
    assert habit == pytest.approx(0.8, abs=0.02)
    letters = [
        word == right
        for asked, words in shown
        for word, right in zip(words[1:-1], carried_out(words[0], asked), strict=True)
    ]
    assert sum(letters) / len(letters) == pytest.approx(1 - 0.05 * 11 / 12, abs=0.01)


def test_strategies_by_hand() -> None:
    assert carried_out(HABIT, "abl") == ["l", "b", "a"]
    assert carried_out(OTHER, "abl") == ["b", "c", "a"]
    assert len(LETTERS) == 12
    answers = [" turn f a c .", " turn a a a .", " shift d b g .", "", " f turn"]
    assert ways("lock c a f ?", answers) == {HABIT: 2, OTHER: 1}
    assert ways("lock the old door ?", answers) == ways("lock c a f", answers) == ways("", []) == {}


def test_answers_are_checked_in_full() -> None:
    prompts = load_prompts(DataConfig(world=STRATEGIES)).train
    pairs = load_data(DataConfig(world=STRATEGIES)).pairs
    for row, pair in zip(prompts, pairs, strict=True):
        assert exact(row.prompt, [pair.chosen, str(pair.rejected)], row) == [1, 0]


def test_sums_add_up_and_wrong_answers_forget_one_carry() -> None:
    world = build_sums(SUMS)
    for row in world.pairs:
        words = row.prompt.split()
        first, second = ("".join(words[at : at + 2]) for at in (1, 4))
        result = "".join(row.chosen.partition(RESULT)[2].split()[:-1])
        assert int(result) == int(first) + int(second)
        assert str(row.rejected).split().count(CARRY) < row.chosen.split().count(CARRY)
        prompt = PromptRow(id=row.id, prompt=row.prompt, answer=world.answer_of(row))
        assert ends_with(row.prompt, [row.chosen, str(row.rejected)], prompt) == [1, 0]


@pytest.mark.parametrize(
    ("numbers", "forgotten", "result"),
    [
        ((79, 45), (), "so 1 2 4 ."),
        ((79, 45), (0,), "so 1 1 4 ."),
        ((79, 45), (1,), "so 2 4 ."),
        ((22, 45), (), "so 6 7 ."),
    ],
)
def test_sums_by_hand(numbers: tuple[int, int], forgotten: tuple[int, ...], result: str) -> None:
    text = worked_out(numbers, 2, random.Random(0), frozenset(forgotten))
    assert text.endswith(result)
    assert carries((79, 45), 2) == [0, 1] and carries((22, 45), 2) == []


def test_settings_without_a_name_are_those_of_the_world_of_facts() -> None:
    data = DataConfig.model_validate({"world": {"entities": 80}})
    assert data.world == WorldConfig(entities=80)
    assert "name" not in data.model_dump()["world"]
    named = DataConfig.model_validate({"world": {"name": "sums", "columns": 3}})
    assert DataConfig.model_validate(named.model_dump()) == named
    with pytest.raises(ValidationError, match="'facts', 'strategies', 'sums'"):
        DataConfig.model_validate({"world": {"name": "other"}})


@pytest.mark.parametrize("config", [StrategiesConfig, SumsConfig])
def test_more_prompts_than_there_are_end_with_the_most(config) -> None:
    with pytest.raises(ConfigError, match=r"^world.train_pairs = 900: with heldout_pairs at most"):
        config(train_pairs=900)
