"""Examples and steps on disk: what is written, to the letter, and what is read back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TopTokens
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.groups import Completion, Group
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig
from dynolab.training.config import TrainConfig
from dynolab.training.step_batch import (
    RecordedCompletion,
    RecordedExample,
    RecordedGroup,
    ScoredRow,
    read_recorded,
    recorded,
)
from dynolab.training.step_record import StepFacts, StepRecord

GOOD, BAD = Encoded((1, 5, 6, 2), 2), Encoded((1, 5, 7, 8, 2), 2)
BOTH = (CHOSEN, REJECTED)

ROW = ScoredRow(
    EncodedExample("r1", GOOD, BAD, (0.75, 0.25)),
    {CHOSEN: torch.tensor([-0.5, -1.5]), REJECTED: torch.tensor([-2.0, -math.inf, -3.0])},
)
ROW_LINE = (
    '{"id":"r1",'
    '"chosen":{"ids":[1,5,6,2],"prompt_length":2,"trained":[]},'
    '"rejected":{"ids":[1,5,7,8,2],"prompt_length":2,"trained":[]},'
    '"chosen_reference":[-0.5,-1.5],'
    '"rejected_reference":[-2.0,-Infinity,-3.0],'
    '"wins":[0.75,0.25]}'
)

GROUP = Group(
    "g1",
    (
        Completion(
            GOOD,
            torch.tensor([0.5, 1.0]),
            old=torch.tensor([-0.25, -0.5]),
            reference=torch.tensor([-0.75, -1.0]),
            top=TopTokens(
                torch.tensor([[6, 3], [2, 4]]),
                torch.tensor([[-0.25, -2.0], [-0.5, -4.0]]),
                torch.tensor([0.125, 0.375]),
            ),
        ),
        Completion(BAD, torch.tensor([0.0, -0.5, 0.25])),
    ),
)
GROUP_LINE = (
    '{"id":"g1","temperature":0.7,"completions":['
    '{"encoded":{"ids":[1,5,6,2],"prompt_length":2,"trained":[]},"advantage":[0.5,1.0],'
    '"old":[-0.25,-0.5],"reference":[-0.75,-1.0],'
    '"top":{"token":[[6,3],[2,4]],"logp":[[-0.25,-2.0],[-0.5,-4.0]],"entropy":[0.125,0.375]}},'
    '{"encoded":{"ids":[1,5,7,8,2],"prompt_length":2,"trained":[]},"advantage":[0.0,-0.5,0.25],'
    '"old":null,"reference":null,"top":null}]}'
)


def numbers(values: Tensor | None) -> tuple[torch.dtype, list[float]] | None:
    return None if values is None else (values.dtype, values.tolist())


def test_a_row_is_a_line_of_all_that_it_holds() -> None:
    assert recorded(ROW, BOTH).model_dump_json() == ROW_LINE
    read = read_recorded(ROW_LINE)
    assert read == recorded(ROW, BOTH)
    assert isinstance(read, RecordedExample) and read.temperature == 1.0


def test_a_row_is_recorded_without_the_side_that_is_not_trained_on() -> None:
    alone = recorded(ScoredRow(ROW.encoded), (CHOSEN,))
    assert alone == RecordedExample(id="r1", chosen=GOOD, wins=(0.75, 0.25))
    bare = recorded(ScoredRow(EncodedExample("r2", GOOD, None)), (CHOSEN,))
    assert bare == RecordedExample(id="r2", chosen=GOOD)


def test_a_group_is_a_line_of_all_that_it_holds() -> None:
    assert recorded(GROUP, BOTH, 0.7).model_dump_json() == GROUP_LINE
    read = read_recorded(GROUP_LINE)
    assert isinstance(read, RecordedGroup) and read == recorded(GROUP, BOTH, 0.7)
    assert recorded(GROUP, BOTH).temperature == 1.0
    # A completion that nothing pushes stands on the chosen side.
    sides = [RecordedCompletion(encoded=GOOD, advantage=[0.5, last]).side for last in (0.0, -0.25)]
    assert sides == [CHOSEN, REJECTED]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_is_given_back_as_its_step_took_it(dtype: torch.dtype) -> None:
    row = read_recorded(ROW_LINE).scored(dtype)
    assert isinstance(row, ScoredRow) and row.encoded == ROW.encoded
    assert {side: numbers(values) for side, values in row.reference.items()} == {
        CHOSEN: (dtype, [-0.5, -1.5]),
        REJECTED: (dtype, [-2.0, -math.inf, -3.0]),
    }
    without = RecordedExample(id="r2", chosen=GOOD).scored(dtype)
    assert without == ScoredRow(EncodedExample("r2", GOOD, None), {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_group_is_given_back_as_its_step_took_it(dtype: torch.dtype) -> None:
    group = read_recorded(GROUP_LINE).scored(dtype)
    assert isinstance(group, Group) and group.id == "g1"
    first, second = group.completions
    assert first.top is not None
    taken = {
        "advantage": first.advantage,
        "old": first.old,
        "reference": first.reference,
        "token": first.top.token,
        "logp": first.top.logp,
        "entropy": first.top.entropy,
    }
    assert first.encoded == GOOD
    assert {name: numbers(values) for name, values in taken.items()} == {
        "advantage": (dtype, [0.5, 1.0]),
        "old": (dtype, [-0.25, -0.5]),
        "reference": (dtype, [-0.75, -1.0]),
        "token": (torch.int64, [[6, 3], [2, 4]]),
        "logp": (dtype, [[-0.25, -2.0], [-0.5, -4.0]]),
        "entropy": (dtype, [0.125, 0.375]),
    }
    assert (second.encoded, second.old, second.reference, second.top) == (BAD, None, None, None)
    assert numbers(second.advantage) == (dtype, [0.0, -0.5, 0.25])


@pytest.mark.parametrize(
    ("line", "places"),
    [
        (ROW_LINE, {"chosen": GOOD, "rejected": BAD}),
        (GROUP_LINE, {"completions[0]": GOOD, "completions[1]": BAD}),
    ],
    ids=["row", "group"],
)
def test_responses_stand_with_their_sides_and_places(line: str, places: dict[str, Encoded]) -> None:
    example = read_recorded(line)
    assert example.responses(BOTH) == [(CHOSEN, GOOD), (REJECTED, BAD)]
    assert example.responses((CHOSEN,)) == [(CHOSEN, GOOD)]
    assert example.responses((REJECTED,)) == [(REJECTED, BAD)]
    assert example.named() == places


def test_an_example_without_the_side_that_an_objective_needs_is_named() -> None:
    row = RecordedExample(id="r2", chosen=GOOD)
    assert row.named() == {"chosen": GOOD}
    assert row.responses((CHOSEN,)) == [(CHOSEN, GOOD)]
    message = r"^updating example r2 = None: its objective needs a rejected response$"
    with pytest.raises(ConfigError, match=message):
        row.responses(BOTH)


def record() -> StepRecord:
    config = TrainConfig()
    facts = StepFacts(
        step=3,
        learning_rate=0.5,
        grad_norm=2.0,
        clip_factor=0.25,
        objective=DPOConfig(),
        optimizer=config.optimizer,
    )
    columns = torch.arange(6.0).reshape(2, 3).T  # not contiguous
    return StepRecord(
        facts,
        (recorded(ROW, BOTH), recorded(GROUP, BOTH, 0.7)),
        before={"layer.weight": columns, "bias": torch.ones(2, dtype=torch.float64)},
        after={"layer.weight": columns + 1, "bias": torch.zeros(2, dtype=torch.bfloat16)},
        state={
            "layer.weight": {"exp_avg": columns / 2, "exp_avg_sq": columns * 2},
            "odd|name|weight": {"exp_avg": torch.ones(1)},
        },
    )


def test_a_step_is_five_files(tmp_path: Path) -> None:
    step, folder = record(), tmp_path / "forces" / "step-00000003"
    step.save(folder)
    step.save(folder)  # a training that goes on from before this step makes it again
    assert {file.name for file in folder.iterdir()} == {
        "step.json",
        "batch.jsonl",
        "before.safetensors",
        "after.safetensors",
        "optimizer.safetensors",
    }
    assert (folder / "step.json").read_text() == step.facts.model_dump_json(indent=1)
    assert (folder / "batch.jsonl").read_text() == f"{ROW_LINE}\n{GROUP_LINE}\n"
    for name in ("before", "after", "optimizer"):
        for tensor in load_file(folder / f"{name}.safetensors").values():
            assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")
    assert set(load_file(folder / "optimizer.safetensors")) == {
        "layer.weight|exp_avg",
        "layer.weight|exp_avg_sq",
        "odd|name|weight|exp_avg",
    }


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    step = record()
    step.save(tmp_path)
    read = StepRecord.load(tmp_path)
    assert (read.facts, read.examples) == (step.facts, step.examples)
    for tensors, expected in (
        (read.before, step.before),
        (read.after, step.after),
        *((read.state[name], step.state[name]) for name in step.state),
    ):
        assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
            name: tensor.tolist() for name, tensor in expected.items()
        }
    assert read.state.keys() == step.state.keys()
