"""Lazy likelihood displacement: whether an update on a question lifts its right answers at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives.base import Objective, read_logps
from dynolab.training.config import OptimizerConfig
from dynolab.training.optimizer import build_optimizer


@dataclass(frozen=True)
class Question:
    """The sampled answers to one question as a batch, and which of them are right."""

    batch: TokenBatch
    correct: Bool[Tensor, " sequences"]


Update = Callable[[ResponseLogits, Question], None]
"""Changes the model's weights in place."""


@dataclass(frozen=True)
class Displacement:
    """What one update did to the right answers of its own question.

    `changes` are Δ log π(y|x) of the right answers, summed over their tokens, in nats, at the
    temperature of the batch.
    """

    id: str
    changes: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean change over the right answers."""
        return sum(self.changes) / len(self.changes)

    def lazy(self, epsilon: float = 0.0) -> bool:
        """Whether the right answers rose by no more than ε on average, or fell."""
        return self.mean <= epsilon


def likelihood_displacement(
    logits: ResponseLogits, questions: Iterable[Question], update: Update
) -> list[Displacement]:
    """One update per question, each from the weights at hand, and its effect on right answers.

    The test of Deng et al., arXiv 2505.18830, definition of lazy likelihood displacement:
    `mean over right answers of log π_after − log π_before ≤ ε`. Questions whose answers are all
    right or all wrong push nothing and are left out. The weights and the gradients are left as
    they were found.

    **Raises:** `ConfigError` for a batch of several questions.
    """
    kept = {name: weight.detach().clone() for name, weight in _trained(logits).items()}
    measured = []
    for question in questions:
        if len(question.batch.ids) != 1:
            raise ConfigError(
                "question", list(question.batch.ids), "give every question a batch of its own"
            )
        if not question.correct.any() or question.correct.all():
            continue
        before = _right_logps(logits, question)
        try:
            update(logits, question)
            changes = _right_logps(logits, question) - before
        finally:
            with torch.no_grad():
                for name, weight in _trained(logits).items():
                    weight.copy_(kept[name])
        measured.append(Displacement(question.batch.ids[0], tuple(changes.tolist())))
    return measured


def one_update(objective: Objective, optimizer: OptimizerConfig) -> Update:
    """A fresh optimizer's single step on the objective's loss over a question's answers.

    Adam's first step has nearly the same size for every weight, whatever its gradient.
    """

    def update(logits: ResponseLogits, question: Question) -> None:
        weights = list(_trained(logits).values())
        read = read_logps(objective, logits(question.batch), question.batch)
        loss = objective.loss(read, question.batch)
        kept_gradients = [weight.grad for weight in weights]
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        build_optimizer(optimizer, weights).step()
        for weight, own in zip(weights, kept_gradients, strict=True):
            weight.grad = own

    return update


def _trained(logits: ResponseLogits) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in logits.named_parameters() if weight.requires_grad}


@torch.no_grad()
def _right_logps(logits: ResponseLogits, question: Question) -> Float[Tensor, " right"]:
    batch = question.batch
    return batch.sequence_sum(token_logps(logits(batch), batch))[question.correct]
