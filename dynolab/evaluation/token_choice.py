"""What pushing each sampled answer, and each of its tokens, does to the right answers, exactly."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.evaluation.displacement import Question
from dynolab.forces.function.policy import PolicyFunction
from dynolab.objectives.base import Objective
from dynolab.results.groups import CompletionForce, TokenChoice


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
    carried = policy.change_along({}, [_gradient_of_right(policy, question)], batch)[0]
    return objective.token_weights(policy.logps({}, batch), batch) * carried


def completion_forces(
    policy: PolicyFunction, objective: Objective, question: Question
) -> list[CompletionForce]:
    """`right_answer_forces`, summed over each answer's tokens."""
    batch = question.batch
    assert batch.advantage is not None
    forces = batch.sequence_sum(right_answer_forces(policy, objective, question).double())
    return [
        CompletionForce(
            id=batch.ids[0], correct=correct, advantage=advantage, tokens=tokens, force=force
        )
        for correct, advantage, tokens, force in zip(
            question.correct.tolist(),
            (batch.sequence_sum(batch.advantage) / batch.sequence_length).tolist(),
            batch.sequence_length.tolist(),
            forces.tolist(),
            strict=True,
        )
    ]


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


def _gradient_of_right(policy: PolicyFunction, question: Question) -> dict[str, Tensor]:
    """∇R, R the mean of log π(y|x) over the right answers."""
    batch = question.batch
    leaves = {name: weight.clone().requires_grad_() for name, weight in policy.weights.items()}
    with torch.enable_grad():
        right = batch.sequence_sum(policy.logps(leaves, batch))[question.correct].mean()
        gradients = torch.autograd.grad(right, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))
