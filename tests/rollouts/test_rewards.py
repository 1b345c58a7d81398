from __future__ import annotations

import gzip
import json
import os
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.data.rows import PromptRow
from dynolab.data.world import lexicon
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.functions import ALLOWED, named_function
from dynolab.rollouts.rewards import (
    BUILT_IN,
    RewardConfig,
    Rewards,
    checked,
    final_number,
    reward_metrics,
)

resolve_reward = partial(named_function, "reward", built_in=BUILT_IN)

REAL = os.environ.get("DYNOLAB_TEST_DATA")
real = pytest.mark.skipif(not REAL, reason="DYNOLAB_TEST_DATA names no folder of real data")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She earns 9 * 2 = <<9*2=18>>18 a day.\n#### 18", "18"),
        ("#### 1,450,000", "1450000"),
        ("####-5", "-5"),
        ("#### −7.50", "-7.5"),
        ("#### $-3", "-3"),
        ("#### -$3", "-3"),
        ("#### $2,125.40 dollars", "2125.4"),
        ("#### 40%", "40"),
        ("#### about .5 litres", "0.5"),
        ("#### 12 apples and 3 pears", "12"),
        ("#### 18\nQuestion: next?\n#### 99", "18"),
        ("We first have 3, then 10-5", "5"),
        ("10 - 4", "4"),
        ("(3)-4", "4"),
        ("= -4", "-4"),
        ("the answer is 72.", "72"),
        ("3,400 or 3,4", "4"),
        ("4 km", "4"),
        ("٣ is 7", "7"),
    ],
)
def test_the_final_number_is_read(text: str, number: str) -> None:
    assert final_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "#### none", "3 is seen\n####", "$ - ,"])
def test_no_number_is_no_number(text: str) -> None:
    assert final_number(text) is None


@real
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_real_solution_is_read_and_rewards_itself(split: str) -> None:
    with gzip.open(Path(str(REAL)) / f"data/gsm8k/{split}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    reward, form = resolve_reward("gsm8k"), resolve_reward("gsm8k_form")
    for number, row in enumerate(rows):
        solution = row["answer"]
        stated = Decimal(solution.split("####")[1].strip().replace(",", ""))
        assert final_number(solution) == stated
        prompt = PromptRow(id=str(number), prompt=row["question"], answer=solution)
        other = f"so #### {stated + 1}"
        assert list(reward(prompt.prompt, [solution, f"It is {stated}.", other], prompt)) == [
            1,
            1,
            0,
        ]
        assert list(form(prompt.prompt, [solution, f"It is {stated}."], prompt)) == [1, 0]


def test_world_answers_are_rewarded_exactly() -> None:
    world = build_world(WorldConfig(entities=20, train_pairs=8, heldout_pairs=4, corpus_rows=16))
    reward, form = resolve_reward("world_answer"), resolve_reward("world_form")
    for pair in world.pairs:
        fact = world.fact_of(pair.chosen)
        assert fact is not None and pair.rejected is not None
        row = PromptRow(id=pair.id, prompt=pair.prompt, answer=fact.value)
        turned = " ".join(lexicon.rephrased_words(fact))
        texts = [
            pair.chosen,
            pair.rejected,
            turned,
            pair.chosen + pair.rejected,
            "say red .",
            "",
            pair.chosen + " thanks",
        ]
        assert list(reward(pair.prompt, texts, row)) == [1, 0, 1, 0, 0, 0, 1]
        assert list(form(pair.prompt, texts, row)) == [1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(ConfigError, match="not a question of the built-in world"):
        reward("say :", ["x"], PromptRow(id="a", prompt="say :", answer="red"))


def test_word_overlap_is_rouge_1() -> None:
    """Of `the cat sat`: all three words; two of three with one too many; none; no words at all."""
    row = PromptRow(id="a", prompt="p", answer="The cat sat.")
    texts = ["the CAT sat", "the the cat", "dogs bark", ""]
    overlap = resolve_reward("word_overlap")("p", texts, row)
    assert list(overlap) == pytest.approx([1, 2 / 3, 0, 0])


THOUGHT = "<think> a\nb </think>\n<answer> 3 </answer>\n"


@pytest.mark.parametrize(
    ("name", "rewarded", "not_rewarded"),
    [
        ("exact", [" yes\n"], ["Yes", "yes yes"]),
        ("think_form", [THOUGHT], [THOUGHT + THOUGHT, THOUGHT + "x", "<answer>3</answer>"]),
        (
            "gsm8k_form",
            ["a\n#### 3", "a\n#### -1,200.5\n"],
            ["#### 3\n#### 3", "a #### 3", "#### 3 is it"],
        ),
    ],
)
def test_forms_and_exact_answers(name: str, rewarded: list[str], not_rewarded: list[str]) -> None:
    row = PromptRow(id="a", prompt="p", answer="yes")
    expected = [1] * len(rewarded) + [0] * len(not_rewarded)
    assert resolve_reward(name)("p", rewarded + not_rewarded, row) == expected


@pytest.mark.parametrize("name", ["exact", "gsm8k", "world_answer"])
def test_a_row_without_an_answer_is_refused(name: str) -> None:
    row = PromptRow(id="r7", prompt="what is the colour of x ?")
    with pytest.raises(ConfigError, match=f"answer of row r7 = None: reward {name}"):
        resolve_reward(name)(row.prompt, ["a"], row)
    with pytest.raises(ConfigError, match="needs a number"):
        resolve_reward("gsm8k")("p", ["1"], PromptRow(id="a", prompt="p", answer="none"))


MODULE = """
def length(prompt, completions, row):
    return [len(text) for text in completions]

def broken(prompt, completions, row):
    return {answer}

constant = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "rewards_of_a_test"
    (tmp_path / f"{name}.py").write_text(MODULE.format(answer="[float('nan')]"))
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_functions_of_allowed_modules_are_rewards(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, f"other, {module}")
    both = Rewards([RewardConfig(name=f"{module}.length", weight=0.5), RewardConfig(name="exact")])
    assert both("p", ["ab", "yes"], PromptRow(id="a", prompt="p", answer="yes")) == [1.0, 2.5]
    with pytest.raises(ConfigError, match=rf"reward {module}\.broken of row a = nan"):
        Rewards([RewardConfig(name=f"{module}.broken")])("p", ["x"], PromptRow(id="a", prompt="p"))
    for name in ("constant", "missing"):
        with pytest.raises(ConfigError, match="has no function"):
            resolve_reward(f"{module}.{name}")
    monkeypatch.setenv(ALLOWED, "no_such_module")
    with pytest.raises(ConfigError, match="cannot be imported"):
        resolve_reward("no_such_module.f")


@pytest.mark.parametrize("listed", ["", "rewards_of", "rewards_of_a_test.inner", "os"])
def test_other_modules_are_never_imported(
    module: str, listed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOWED, listed)
    with pytest.raises(ConfigError, match=ALLOWED):
        resolve_reward(f"{module}.length")
    assert module not in sys.modules


@pytest.mark.parametrize("name", ["unknown", "", ".", "os.system", "gsm8k."])
def test_unknown_names_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOWED, raising=False)
    with pytest.raises(ConfigError, match="gsm8k_form"):
        Rewards([RewardConfig(name=name)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "= '1 values'"),
        ([1.0, float("nan")], "= nan"),
        ([1.0, float("-inf")], "= -inf"),
        ([1.0, None], "= None"),
        ([1.0, "2"], "= '2'"),
        ("ab", "'2 values'"),
        (None, "NoneType"),
        (3.0, "float"),
        ({"a": 1, "b": 2}, "dict"),
        (torch.tensor(3.0), "Tensor"),
    ],
)
def test_what_is_no_reward_is_one_clear_error(values: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"reward mine of row r1.*{message}.*finite number"):
        checked("mine", values, 2, "r1")


def test_arrays_and_truth_values_are_rewards() -> None:
    for values in (np.array([1, 0]), torch.tensor([1.0, 0.0]), (True, False), [np.float32(1), 0]):
        assert checked("mine", values, 2, "r1") == [1.0, 0.0]


def test_groups_of_equal_rewards_are_counted() -> None:
    assert reward_metrics([[1, 1], [0, 1], [0, 0]]) == {
        "rollout/reward": 0.5,
        "rollout/reward_std": 0.5,
        "rollout/equal_groups": 2.0,
    }


def test_no_rewards_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Rewards([])
