"""A batch's rows are those that its loader asks for, and what runs meanwhile draws as without."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from dynolab.forces.ledger.forwards import Forward, draws_of
from dynolab.integrations.callback import ProbeCallback
from dynolab.integrations.random_states import undisturbed
from dynolab.integrations.rows import BatchRows
from dynolab.integrations.trained import TrainedRows
from tests.integrations.test_callback import SHARED
from tests.integrations.test_forces import grpo
from tests.training.small import make_policy, make_rows, make_tokenizer

SETTINGS = {**SHARED, "learning_rate": 0.05, "optim": "sgd"}


class Drawing:
    """Collates prompts of which it leaves tokens out, by random numbers from somewhere."""

    def __init__(self, source: str) -> None:
        self.tokenizer, self.count = make_tokenizer(), 0
        self.mine = np.random.default_rng(0)
        self.draw = {
            "nowhere": lambda: 1.0,
            "torch": lambda: torch.rand(1).item(),
            "python": random.random,
            "numpy": np.random.rand,
            "a generator": self.mine.random,
            "a count": self.counted,
        }[source]

    def counted(self) -> float:
        self.count += 1
        return self.count % 3

    def __call__(self, rows: list[dict[str, str]]) -> dict[str, torch.Tensor]:
        read = [self.read(row) for row in rows]
        longest = max(len(ids) for ids, _ in read)
        pad = [[0] * (longest - len(ids)) for ids, _ in read]
        ids = torch.tensor([ids + more for (ids, _), more in zip(read, pad, strict=True)])
        mask = torch.tensor(
            [[1] * len(ids) + more for (ids, _), more in zip(read, pad, strict=True)]
        )
        cuts = torch.tensor([cut for _, cut in read])[:, None]
        answer = (torch.arange(longest) >= cuts) & mask.bool()
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": torch.where(answer, ids, -100),
        }

    def read(self, row: dict[str, str]) -> tuple[list[int], int]:
        prompt = self.tokenizer(row["prompt"])["input_ids"]
        prompt = prompt[:1] + [token for token in prompt[1:] if self.draw() > 0.5]
        return prompt + self.tokenizer(row["chosen"])["input_ids"], len(prompt)


def drawing(folder: Path, source: str = "nowhere", **more: Any) -> Trainer:
    rows = [row.model_dump(include={"id", "prompt", "chosen"}) for row in make_rows(8)]
    rows[3] = {**rows[2], "id": "another of the same tokens"}
    return Trainer(
        make_policy(make_tokenizer()),
        TrainingArguments(str(folder), remove_unused_columns=False, **{**SETTINGS, **more}),
        train_dataset=Dataset.from_list(rows),
        data_collator=Drawing(source),
        processing_class=make_tokenizer(),
    )


class Follower(TrainerCallback):
    """Notes the rows of every step, and what the loader's sampler drew."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.found, self.drawn = trainer, list[list[str]](), list[list[str]]()
        self.passes, self.read = list[Any](), list[tuple[int, ...]]()
        trainer.model.register_forward_pre_hook(self.enter, with_kwargs=True)

    def enter(self, model: Any, arguments: Any, named: dict[str, torch.Tensor]) -> None:
        if torch.is_grad_enabled() and model.training:
            rows = zip(named["input_ids"], named["attention_mask"].bool(), strict=True)
            self.passes += [(tuple(ids[real].tolist()), 0) for ids, real in rows]

    def on_train_begin(self, *arguments: Any, train_dataloader: Any, **named: Any) -> None:
        self.rows = BatchRows.begin(self.trainer, train_dataloader)
        collate = train_dataloader.base_dataloader.collate_fn

        def noted(rows: list[dict[str, Any]]) -> Any:
            self.drawn.append([row["id"] for row in rows])
            return collate(rows)

        if not self.trainer.args.dataloader_num_workers:
            train_dataloader.base_dataloader.collate_fn = noted

    def on_step_begin(self, *arguments: Any, train_dataloader: Any, **named: Any) -> None:
        if self.trainer.state.global_step == 1:
            with undisturbed(self.trainer.data_collator):
                next(iter(train_dataloader.batch_sampler))  # another look at the loader

    def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
        self.found.append([self.rows.rows.name(n) for n in self.rows.numbers(self.passes)])
        self.read += [ids for ids, _ in self.passes]
        self.passes = []

    def on_train_end(self, *arguments: Any, **named: Any) -> None:
        self.rows.end()


def followed(trainer: Trainer, **more: Any) -> Follower:
    trainer.add_callback(follower := Follower(trainer))
    trainer.train(**more)
    assert "get_batch_samples" not in vars(trainer)
    return follower


@pytest.mark.parametrize(
    "source", ["nowhere", "torch", "python", "numpy", "a generator", "a count"]
)
def test_a_collator_that_draws_draws_the_same_and_rows_have_their_names(
    source: str, tmp_path: Path
) -> None:
    weights = []
    for watched in (False, True):
        random.seed(0)
        np.random.seed(0)
        trainer = drawing(tmp_path / str(watched), source)
        if watched:
            trainer.add_callback(ProbeCallback(trainer, every=1))
            follower = followed(trainer)
            steps = [follower.drawn[n] for n in range(trainer.state.global_step)]
            assert follower.found == steps
        else:
            trainer.train()
        weights.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_training_names_the_rows_that_it_goes_on_with(
    workers: int, tmp_path: Path
) -> None:
    more = {"max_steps": 3, "gradient_accumulation_steps": 2, "dataloader_num_workers": workers}
    saved = {**more, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 1}
    follower = followed(drawing(tmp_path, **saved))
    assert [len(step) for step in follower.found] == [2, 2, 2]
    by_name = {row["id"]: row for row in follower.trainer.train_dataset}
    for name, ids in zip(chain(*follower.found), follower.read, strict=True):
        assert tuple(Drawing("nowhere").read(by_name[name])[0]) == ids
    again = followed(
        drawing(tmp_path, **saved), resume_from_checkpoint=str(tmp_path / "checkpoint-1")
    )
    assert again.found == follower.found[1:]


def test_a_prompt_to_which_an_answer_is_generated_is_its_row(tmp_path: Path) -> None:
    trainer = grpo(tmp_path)
    rows: list[Any] = []

    class Prompts(TrainerCallback):
        def on_train_begin(self, *arguments: Any, train_dataloader: Any, **named: Any) -> None:
            self.rows = BatchRows.begin(trainer, train_dataloader)

        def on_pre_optimizer_step(self, *arguments: Any, **named: Any) -> None:
            prompts = {(answer.row, answer.ids) for answer in self.rows.answers()}
            generated = [((*ids, 5, 6), len(ids)) for _, ids in sorted(prompts)]
            rows.append((self.rows.numbers(generated), [row for row, _ in sorted(prompts)]))

    trainer.add_callback(Prompts())
    trainer.train()
    assert rows and all(found == expected for found, expected in rows)


def test_ids_that_repeat_are_told_apart_by_their_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = drawing(tmp_path)
    trainer.train_dataset = trainer.train_dataset.map(lambda row, n: {"id": f"q{n // 4}"}, True)
    rows = TrainedRows(trainer, trainer.train_dataset)
    assert [rows.name(number) for number in (0, 3)] == ["q0 (row-000000)", "q0 (row-000003)"]
    assert (
        sum("ids of the trainer's dataset repeat" in line.message for line in caplog.records) == 1
    )


def test_a_transform_is_run_with_random_states_of_its_own(tmp_path: Path) -> None:
    trainer, mine = drawing(tmp_path), random.Random(0)
    calls = []

    def transform(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        calls.append(mine.random())
        return {**batch, "chosen": [f" {random.choice(text.split())}" for text in batch["chosen"]]}

    trainer.train_dataset.set_transform(transform)
    before = random.getstate(), mine.getstate()
    ProbeCallback(trainer, every=1)
    assert calls and before == (random.getstate(), mine.getstate())


def test_a_forward_s_sequences_are_without_padding_and_begin_at_the_first_label() -> None:
    ids, mask = torch.tensor([[5, 6, 7, 0]]), torch.tensor([[1, 1, 1, 0]])
    labels = torch.tensor([[-100, -100, 7, -100]])

    def sequences(**named: torch.Tensor) -> list[tuple[tuple[int, ...], int]]:
        return list(Forward((), {"input_ids": ids, **named}, draws_of(ids.device)).sequences())

    assert sequences() == [((5, 6, 7, 0), 0)]
    assert sequences(attention_mask=mask) == [((5, 6, 7), 0)]
    assert sequences(attention_mask=mask, labels=labels) == [((5, 6, 7), 2)]
    assert sequences(labels=torch.full_like(labels, -100)) == [((5, 6, 7, 0), 0)]
