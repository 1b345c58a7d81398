"""Objectives with a reference that moves: KTO's drift, SPPO's iterations and self-play."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.rows import Example, PromptRow, read_rows
from dynolab.forces import PolicyFunction, replay_error, split_step
from dynolab.training.examples import unrelated
from dynolab.training.job import TrainJob
from models.language import load_language_model, load_tokenizer
from tests.training.small import group_settings, metrics, run_small, settings, step_record

STEEP = {"name": "sgd", "learning_rate": 3.3}


def test_unrelated_answers_are_those_of_the_row_before_cut_to_the_longest_row() -> None:
    rows = [
        EncodedExample("a", Encoded((1, 2, 10, 11, 12), 2), None),
        EncodedExample("b", Encoded((3, 20), 1), None),
        EncodedExample("c", Encoded((4, 5, 6, 7, 30), 4), None),
    ]
    assert unrelated(rows) == [
        Encoded((1, 2, 30), 2),
        Encoded((3, 10, 11, 12), 1),
        Encoded((4, 5, 6, 7, 20), 4),
    ]
    assert unrelated([rows[2], rows[0]])[0] == Encoded((4, 5, 6, 7, 10), 4)


def test_the_drift_is_the_mean_log_ratio_on_unrelated_answers(inputs: Path, tmp_path: Path) -> None:
    config = settings(
        objective={"name": "kto", "beta": 0.5, "undesirable_weight": 0.1},
        optimizer=STEEP,
        steps=2,
        checkpoint_every=0,
        warmup_steps=0,
        record_steps=[1],
    )
    job = run_small(inputs, tmp_path, config)
    drifts = [values["train/drift"] for values in metrics(job) if "train/drift" in values]
    assert drifts[0] == pytest.approx(0.0, abs=1e-4)
    record = step_record(job, 1)
    assert {example.drift for example in record.examples} == {drifts[1]}
    assert {example.label for example in record.examples} == {True, False}
    policy = PolicyFunction(load_language_model(job.model), torch.float64)
    split = split_step(record, policy)
    assert replay_error(split, record) < 1e-4
    assert drifts[1] > 0.01
    without = tuple(example.model_copy(update={"drift": 0.0}) for example in record.examples)
    wrong = split_step(replace(record, examples=without), policy)
    assert replay_error(wrong, record) > 1e-3


BETA, RATE = 0.1, 0.001
SPPO = {"name": "sppo", "beta": BETA, "labels": "soft"}


def plain_logp(model: nn.Module, sequence: Encoded) -> Tensor:
    logits = model(torch.tensor([sequence.ids])).logits[0, sequence.prompt_length - 1 : -1]
    response = torch.tensor(sequence.ids[sequence.prompt_length :])
    return logits.log_softmax(-1).gather(-1, response[:, None]).sum()


def model_at(job: TrainJob, weights: dict[str, Tensor]) -> nn.Module:
    model = load_language_model(job.model, torch.float64).eval()
    model.load_state_dict({name: w.double() for name, w in weights.items()}, strict=False)
    return model


def test_steps_descend_the_paper_s_loss_against_the_policy_of_their_iteration(
    inputs: Path, tmp_path: Path
) -> None:
    """Each step's realised change against autograd of the plain loss at recorded weights."""
    config = group_settings(
        objective=SPPO,
        optimizer={"name": "sgd", "learning_rate": RATE},
        steps=4,
        record_steps=[0, 1, 2, 3],
        completions=5,
        clip_norm=1e6,
    )
    job = run_small(inputs, tmp_path, config)
    records = [step_record(job, step) for step in config.record_steps]
    for number, record in enumerate(records):  # two steps an iteration
        start = model_at(job, records[number - number % 2].before)
        policy = model_at(job, record.before)
        loss = torch.zeros((), dtype=torch.float64)
        for pair in record.examples:
            assert pair.wins[0] > 0.5 > pair.wins[1]
            for answer, win in zip((pair.chosen, pair.rejected), pair.wins, strict=True):
                assert win * 10 == pytest.approx(round(win * 10))  # of five answers, halves too
                with torch.no_grad():
                    reference = plain_logp(start, answer)
                loss = loss + (plain_logp(policy, answer) - reference - (win - 0.5) / BETA) ** 2
        (loss / len(record.examples)).backward()
        named = {name: p for name, p in policy.named_parameters() if p.grad is not None}
        moved = {name: record.after[name] - record.before[name] for name in named}
        steps = {name: -RATE * p.grad for name, p in named.items()}
        gap = sum(float((moved[name] - step).square().sum()) for name, step in steps.items())
        size = sum(float(step.square().sum()) for step in steps.values())
        assert (gap / size) ** 0.5 < 1e-3


def test_rows_bring_their_own_preferences(inputs: Path, tmp_path: Path) -> None:
    job = run_small(inputs, tmp_path, settings(objective=SPPO, record_steps=[0]))
    wins = {row.id: row.wins for row in read_rows(job.examples, Example)}
    taken = {example.id: example.wins for example in step_record(job, 0).examples}
    assert taken.items() <= wins.items()
    assert "wins" not in Example(id="a", prompt="p", chosen="c").model_dump_json()


@pytest.fixture(scope="module")
def job(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainJob:
    config = group_settings(objective={"name": "spin"}, completions=1, record_steps=[0, 2])
    return run_small(inputs, tmp_path_factory.mktemp("spin"), config)


def test_an_iteration_begins_at_its_reference(job: TrainJob) -> None:
    logged = metrics(job)
    for number, values in enumerate(logged):  # an iteration has two steps
        assert (abs(values["train/margin"]) < 1e-6) == (number % 2 == 0)
    # β/2 on both sides where policy and reference are one.
    assert logged[0]["train/dynamic_learning_rate"] == pytest.approx(0.05)


def test_pairs_are_the_rows_answers_against_samples(job: TrainJob) -> None:
    tokenizer = load_tokenizer(job.model)
    own = {row.id: row.answer for row in read_rows(job.examples, PromptRow)}
    samples = set()
    for step in (0, 2):
        record = step_record(job, step)
        assert record.facts.objective.name == "spin"
        for example in record.examples:
            sides = example.named()
            response = sides["chosen"].ids[sides["chosen"].prompt_length :]
            text = tokenizer.decode(response, skip_special_tokens=True)
            assert text == (own[example.id] or "").strip()
            samples.add(sides["rejected"].ids)
    assert len(samples) > 1
