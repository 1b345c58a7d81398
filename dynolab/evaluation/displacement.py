"""What updates, answers and tokens do to a question's right answers.

Lazy likelihood displacement: whether an update on a question lifts its right answers. And what
pushing each sampled answer, and each of its tokens, does to them, and to the entropy, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.measures import entropy
from dynolab.likelihood.entropy_scores import entropy_scores
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives.base import Objective, read_logps
from dynolab.results.groups import CompletionForce, TokenChoice
from dynolab.training.config import OptimizerConfig
from dynolab.training.engine import build_optimizer


@dataclass(frozen=True)
class Question:
    """The sampled answers to one question as a batch, with those that are right."""

    batch: TokenBatch
    correct: Bool[Tensor, " sequences"]


Update = Callable[[ResponseLogits, Question], None]
"""Changes the model's weights in place."""


Value = Callable[[Weights], Float[Tensor, ""]]
"""A number that depends on the weights."""


@dataclass(frozen=True)
class Displacement:
    """Effect of one update on the right answers of its own question.

    `changes` are Δ log π(y|x) of the right answers, summed over their tokens, in nats, at the
    batch's temperature.
    """

    id: str
    changes: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean change over the right answers."""
        return sum(self.changes) / len(self.changes)


def likelihood_displacement(
    logits: ResponseLogits, questions: Iterable[Question], update: Update
) -> list[Displacement]:
    """Makes one update per question, each from the current weights, and measures its right answers.

    This is the test for lazy likelihood displacement of Deng et al., arXiv 2505.18830:
    `mean over right answers of log π_after − log π_before ≤ ε`. Questions whose answers are all
    right or all wrong have no gradient and are skipped. Weights and gradients are restored.

    **Raises:** `ConfigError` for a batch of several questions.
    """
    originals = {name: weight.detach().clone() for name, weight in _trainable(logits).items()}
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
                for name, weight in _trainable(logits).items():
                    weight.copy_(originals[name])
        measured.append(Displacement(question.batch.ids[0], tuple(changes.tolist())))
    return measured


def one_update(objective: Objective, optimizer: OptimizerConfig) -> Update:
    """One step of a fresh optimizer on the objective's loss over a question's answers.

    Adam's first step has nearly the same size for every weight, whatever its gradient.
    """

    def update(logits: ResponseLogits, question: Question) -> None:
        weights = list(_trainable(logits).values())
        logps = read_logps(objective, logits(question.batch), question.batch)
        loss = objective.loss(logps, question.batch)
        gradients_before = [weight.grad for weight in weights]
        _set_gradients(weights, torch.autograd.grad(loss, weights))
        build_optimizer(optimizer, weights).step()
        _set_gradients(weights, gradients_before)

    return update


def _set_gradients(
    weights: Sequence[torch.nn.Parameter], gradients: Sequence[Tensor | None]
) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient


def _trainable(logits: ResponseLogits) -> dict[str, torch.nn.Parameter]:
    return {name: weight for name, weight in logits.named_parameters() if weight.requires_grad}


@torch.no_grad()
def _right_logps(logits: ResponseLogits, question: Question) -> Float[Tensor, " right"]:
    batch = question.batch
    return batch.sequence_sum(token_logps(logits(batch), batch))[question.correct]


def right_answer_forces(
    policy: PolicyFunction, objective: Objective, question: Question
) -> Float[Tensor, " tokens"]:
    """What each token of a question's answers does to its right ones, to first order.

    `f_l = c_l ⟨∇ log π_l, ∇ R⟩`, R the mean of log π(y|x) over the right answers and c_l the
    objective's weight of token l. A plain gradient step of rate η changes R by `η Σ_l f_l`. One
    backward pass gives ∇R, one forward-mode derivative along it those of all tokens.

    **Returns:** nats per unit of the learning rate; below zero a token drags right answers down.
    """
    batch = question.batch

    def right(weights: Weights) -> Float[Tensor, ""]:
        return batch.sequence_sum(policy.logps(weights, batch))[question.correct].mean()

    return _pushes_along(policy, objective, batch, right)


@dataclass(frozen=True)
class EntropyForces:
    """What each token of a batch's answers does to the mean entropy of all their tokens.

    - `exact`: `c_l ⟨∇ log π_l, ∇ H̄⟩`, nats per unit of the learning rate: the token's line in a
      ledger of a plain gradient step.
    - `rule`: `−c_l (S_l − E_π S)` (Wang et al., arXiv 2602.03392, theorem 3.3), the change of the
      entropy at the token's own position alone as if each logit were a weight of its own; up to a
      factor.
    """

    exact: Float[Tensor, " tokens"]
    rule: Float[Tensor, " tokens"]


def entropy_forces(
    policy: PolicyFunction, objective: Objective, batch: TokenBatch
) -> EntropyForces:
    """Of every token, at the batch's temperature; one backward and one forward-mode pass."""

    def mean_entropy(weights: Weights) -> Float[Tensor, ""]:
        return entropy(policy.logits(weights, batch) / batch.temperature, batch.token).mean()

    exact = _pushes_along(policy, objective, batch, mean_entropy)
    pushes = objective.token_weights(policy.logps({}, batch), batch)
    return EntropyForces(exact, -pushes * entropy_scores(policy.logits({}, batch), batch).fall)


def _pushes_along(
    policy: PolicyFunction, objective: Objective, batch: TokenBatch, value: Value
) -> Float[Tensor, " tokens"]:
    """`c_l ⟨∇ log π_l, ∇ value⟩` of every token."""
    carried = policy.change_along({}, [_gradient_of(policy, value)], batch)[0]
    return objective.token_weights(policy.logps({}, batch), batch) * carried


def completion_forces(
    policy: PolicyFunction, objective: Objective, question: Question
) -> list[CompletionForce]:
    """`right_answer_forces` and `entropy_forces`, summed over each answer's tokens."""
    batch = question.batch
    assert batch.advantage is not None
    of_entropy = entropy_forces(policy, objective, batch)
    token_forces = [
        right_answer_forces(policy, objective, question),
        of_entropy.exact,
        of_entropy.rule,
    ]
    forces = batch.sequence_sum(torch.stack(token_forces, dim=1).double())
    advantages = batch.sequence_sum(batch.advantage) / batch.sequence_length
    rows = []
    for sequence, (force, on_entropy, by_rule) in enumerate(forces.tolist()):
        row = CompletionForce(
            id=batch.ids[0],
            correct=bool(question.correct[sequence]),
            advantage=float(advantages[sequence]),
            tokens=int(batch.sequence_length[sequence]),
            force=force,
            entropy=on_entropy,
            entropy_rule=by_rule,
        )
        rows.append(row)
    return rows


def token_choice(
    policy: PolicyFunction, objective: Objective, plain: Question, rewritten: TokenBatch
) -> TokenChoice:
    """Compares the tokens that an advantage rule pushes less with those that do harm.

    **Arguments:**

    - `plain`: the question's answers with their groups' advantages, before the rule.
    - `rewritten`: the same answers with the rule's advantages.
    """
    batch = plain.batch
    assert batch.advantage is not None and rewritten.advantage is not None
    forces = right_answer_forces(policy, objective, plain).double()
    wrong = ~plain.correct[batch.sequence]
    chosen = wrong & (rewritten.advantage != batch.advantage)
    harmful = wrong & (forces < 0)
    return TokenChoice(
        id=batch.ids[0],
        wrong=int(wrong.sum()),
        chosen=int(chosen.sum()),
        harmful=int(harmful.sum()),
        both=int((chosen & harmful).sum()),
        harm=-float(forces[harmful].sum()),
        harm_chosen=-float(forces[chosen & harmful].sum()),
        help_chosen=float(forces[chosen & ~harmful].sum()),
    )


def _gradient_of(policy: PolicyFunction, value: Value) -> dict[str, Tensor]:
    leaves = {name: weight.clone().requires_grad_() for name, weight in policy.weights.items()}
    with torch.enable_grad():
        wanted = list(leaves.values())
        gradients = torch.autograd.grad(value(leaves), wanted, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))
