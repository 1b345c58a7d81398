from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from dynolab.data.encode import Encoded
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals
from dynolab.errors import ConfigError
from dynolab.evaluation.displacement import Question, likelihood_displacement, one_update
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import GRPOConfig, build_objective
from dynolab.training.config import OptimizerConfig
from tests.forces.small_models import neox, weights

GRPO = build_objective(GRPOConfig(scale_by_std=False))
PROMPT, RIGHT, OTHER, WRONG = (5, 6, 7), (10, 11, 12, 13), (20, 21), (30, 31, 32)


def sgd(rate: float):
    return one_update(GRPO, OptimizerConfig(name="sgd", learning_rate=rate))


def question(name: str, answers: dict[tuple[int, ...], tuple[bool, float]]) -> Question:
    completions = tuple(
        Completion(
            Encoded(PROMPT + ids, len(PROMPT)),
            torch.full((len(ids),), advantage, dtype=torch.float64),
        )
        for ids, (_, advantage) in answers.items()
    )
    group = Group(name, completions)
    batch = collate_groups([group], 0, count_group_totals([group]))
    return Question(batch, torch.tensor([correct for correct, _ in answers.values()]))


MIXED = question("mixed", {RIGHT: (True, 0.5), WRONG: (False, -1.0), OTHER: (True, 0.5)})


def right_logps(logits: ResponseLogits, one: Question) -> Tensor:
    read = token_logps(logits(one.batch), one.batch)
    return one.batch.sequence_sum(read)[one.correct]


def test_small_steps_follow_the_gradients() -> None:
    """Δ log π(y) → −η ⟨∇ log π(y), ∇ loss⟩."""
    logits, rate = ResponseLogits(neox()), 1e-7
    trained = list(logits.parameters())
    read = token_logps(logits(MIXED.batch), MIXED.batch)
    loss = torch.autograd.grad(GRPO.loss(read, MIXED.batch), trained)
    expected = []
    for number in range(2):
        own = torch.autograd.grad(right_logps(logits, MIXED)[number], trained)
        expected.append(-rate * sum((a * b).sum().item() for a, b in zip(own, loss, strict=True)))
    (measured,) = likelihood_displacement(logits, [MIXED], sgd(rate))
    assert measured.id == "mixed"
    assert measured.changes == pytest.approx(expected, rel=1e-4)
    assert measured.mean == pytest.approx(sum(expected) / 2, rel=1e-4)


def test_every_question_starts_from_the_same_weights_and_leaves_them() -> None:
    model = neox()
    logits, found = ResponseLogits(model), weights(model)
    model.get_output_embeddings().weight.grad = torch.ones_like(
        model.get_output_embeddings().weight
    )
    second = question("second", {OTHER: (True, 1.0), RIGHT: (False, -1.0)})
    update = one_update(GRPO, OptimizerConfig(learning_rate=1e-2))
    both = likelihood_displacement(logits, [MIXED, second], update)
    assert both == likelihood_displacement(logits, [second, MIXED], update)[::-1]
    assert all(torch.equal(found[name], now) for name, now in weights(model).items())
    assert (model.get_output_embeddings().weight.grad == 1).all()
    assert model.get_input_embeddings().weight.grad is None


def test_a_failed_update_leaves_the_weights() -> None:
    model = neox()
    found = weights(model)

    def fail(logits: ResponseLogits, one: Question) -> None:
        sgd(0.1)(logits, one)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        likelihood_displacement(ResponseLogits(model), [MIXED], fail)
    assert all(torch.equal(found[name], now) for name, now in weights(model).items())


def test_right_answers_rise_alone_and_are_lazy_under_wrong_ones_like_them() -> None:
    logits, twin = ResponseLogits(neox()), (*RIGHT[:-1], 40)
    alone = question("alone", {RIGHT: (True, 1.0), twin: (False, 0.0)})
    dragged = question("dragged", {RIGHT: (True, 0.1), twin: (False, -1.0)})
    rising, lazy = likelihood_displacement(logits, [alone, dragged], sgd(1e-3))
    assert rising.mean > 0 > lazy.mean


def test_questions_without_contrast_are_left_out() -> None:
    answers = {RIGHT: (True, 0.0), OTHER: (True, 0.0)}
    wrong = dict.fromkeys(answers, (False, 0.0))
    batches = [question("all", answers), MIXED, question("none", wrong)]
    measured = likelihood_displacement(ResponseLogits(neox()), batches, sgd(1e-3))
    assert [one.id for one in measured] == ["mixed"]


def test_a_batch_of_two_questions_is_refused() -> None:
    two = replace(MIXED, batch=replace(MIXED.batch, ids=("a", "b")))
    with pytest.raises(ConfigError, match="batch of its own"):
        likelihood_displacement(ResponseLogits(neox()), [two], sgd(1e-3))
