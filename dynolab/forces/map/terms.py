"""A and G of the decomposition at each response token, and the papers' measures made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import by_length
from dynolab.data.encode import Encoded
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights
from dynolab.forces.map.weighted import Updating, labelled
from dynolab.forces.step.split import step_batches
from dynolab.likelihood.token_facts import token_facts
from dynolab.objectives import Objective, build_objective, read_logps, target_force
from dynolab.training.step_record import Recorded, StepRecord


@dataclass(frozen=True)
class TokenTerms:
    """What response tokens contribute to `Δ log π_m = −η Σ_l A_m K_{m,l} G_l`, one number a token.

    With `A = I − 1πᵀ` (V×V) and `G = Σ_j c_j (π − e_{t_j})/T`, which is `c(π − e_y)` of an
    objective that reads y alone at T = 1 (Ren & Sutherland, arXiv 2407.10490, prop. 1). π is
    softmax(z/T), with T = 1 unless the tokens were trained at another temperature.

    - `logp`: log π_y in nats.
    - `a_frobenius`: `‖A‖_F`, from `‖A‖²_F = V‖π‖² + V − 2`.
    - `energy`: 1 − π_y. `force_size`: `‖π − e_y‖₂`.
    - `learning_rate`: y's c, its dynamic learning rate; 1 for a token without training, whose
      G is then the force of −log π itself.
    - `g_norm`: `‖G‖₂`, over all t_j: `|c| ‖π − e_y‖₂/T` where y is the only one.

    Energy, force size and ‖G‖ keep their digits as π_y → 1.
    """

    logp: Float[Tensor, " tokens"]
    a_frobenius: Float[Tensor, " tokens"]
    energy: Float[Tensor, " tokens"]
    force_size: Float[Tensor, " tokens"]
    learning_rate: Float[Tensor, " tokens"]
    g_norm: Float[Tensor, " tokens"]

    def split(self, lengths: Sequence[int]) -> list[TokenTerms]:
        """Splits the terms into consecutive responses of these lengths."""
        parts = {name: values.split(list(lengths)) for name, values in vars(self).items()}
        return [
            TokenTerms(**dict(zip(parts, values, strict=True)))
            for values in zip(*parts.values(), strict=True)
        ]


@torch.no_grad()
def token_terms(
    logits: Float[Tensor, "tokens vocabulary"],
    targets: Int[Tensor, "tokens ..."],
    token_weights: Float[Tensor, "tokens ..."] | None = None,
    *,
    temperature: float = 1.0,
) -> TokenTerms:
    """Terms of the tokens y that these logits predict.

    **Arguments:**

    - `targets`: y, or one column for each weighted token at its position, y first.
    - `token_weights`: c of every target (`Objective.token_weights`); default: 1 for y alone.
    - `temperature`: T at which c was computed.
    """
    targets = targets.reshape(len(logits), -1)
    rates = torch.ones_like(logits[:, :1])
    if token_weights is not None:
        rates = token_weights.reshape(len(logits), -1)
    facts = token_facts(logits if temperature == 1 else logits / temperature, targets[:, 0])
    return TokenTerms(
        logp=facts.logp,
        a_frobenius=facts.a_frobenius,
        energy=facts.energy,
        force_size=facts.force_size,
        learning_rate=rates[:, 0],
        g_norm=target_force(rates, logits, targets, temperature).norm(dim=-1),
    )


@torch.no_grad()
def response_terms(
    policy: PolicyFunction,
    sequences: Sequence[Encoded],
    *,
    at: Weights | None = None,
    batch_tokens: int = 4_096,
) -> list[TokenTerms]:
    """Terms of every response's tokens at some weights, c = 1, in the sequences' order.

    **Arguments:**

    - `at`: the weights; default: the policy's own.
    - `batch_tokens`: bound on sequences × padded length of one forward.
    """
    place = policy.cast(at or {})
    terms_of: dict[int, TokenTerms] = {}
    for members in by_length(sequences, batch_tokens):
        batch = policy.batch([sequences[number] for number in members])
        terms = token_terms(policy.logits(place, batch, forward_mode=False), batch.token)
        terms_of.update(zip(members, terms.split(batch.sequence_length.tolist()), strict=True))
    return [terms_of[number] for number in range(len(sequences))]


@dataclass(frozen=True)
class UpdatingTerms:
    """One response that a step trained on, with the terms of its tokens before the step."""

    updating: Updating
    terms: TokenTerms


@torch.no_grad()
def step_terms(
    record: StepRecord, policy: PolicyFunction, *, batch_tokens: int = 4_096
) -> list[UpdatingTerms]:
    """Terms of every token that a recorded step trained on, with its dynamic learning rate c_l.

    They are computed at the weights before the step, as its gradient was; responses come example
    by example, chosen before rejected. c_l includes the step's denominators, not its learning
    rate or clip factor (`record.facts`).
    """
    return updating_terms(
        policy,
        record.examples,
        build_objective(record.facts.objective),
        at=record.before,
        batch_tokens=batch_tokens,
    )


@torch.no_grad()
def updating_terms(
    policy: PolicyFunction,
    examples: Sequence[Recorded],
    objective: Objective,
    *,
    at: Weights,
    batch_tokens: int = 4_096,
) -> list[UpdatingTerms]:
    """`step_terms` of a step on these examples, at these weights."""
    place = policy.cast(at)
    terms: dict[int, list[TokenTerms]] = {}
    for numbers, batch in step_batches(examples, objective, policy, batch_tokens):
        logits = policy.logits(place, batch, forward_mode=False)
        rates = objective.token_weights(read_logps(objective, logits, batch), batch)
        batch_terms = token_terms(logits, batch.targets, rates, temperature=batch.temperature)
        by_response = iter(batch_terms.split(batch.sequence_length.tolist()))
        for number in numbers:
            terms[number] = [next(by_response) for _ in examples[number].responses(objective.sides)]
    labels = labelled(examples, objective)
    in_order = list(chain.from_iterable(terms[number] for number in range(len(examples))))
    return [UpdatingTerms(*both) for both in zip(labels, in_order, strict=True)]


def kernel_lower_bound(
    change: Float[Tensor, " tokens"],
    observed: TokenTerms,
    updating: Sequence[TokenTerms],
    learning_rate: float,
) -> Float[Tensor, " tokens"]:
    """`|Δ log π_y| / (η ‖e_y − π_o‖ ‖G‖) ≤ ‖K‖₂`, one bound per observed token.

    From `Δ log π_m = −η Σ_l (e − π_m)ᵀ K_{m,l} G_l` and Cauchy–Schwarz, with ‖G‖ over all
    updating tokens and K the row of blocks [K_{m,1} … K_{m,L}]. It holds for the first-order
    change of one gradient step, and for a measured change up to the step's residual. A clip factor
    belongs in η, an adaptive optimizer's preconditioner in K. Momentum and weight decay change
    log π without G: under them nothing is bounded.

    **Arguments:**

    - `change`: Δ log π of one response's tokens, in nats.
    - `observed`, `updating`: terms before the step, of that response and of all that the step
      trained on (`response_terms`, `step_terms`).
    - `learning_rate`: η of the step.
    """
    g = torch.cat([terms.g_norm for terms in updating]).norm()
    size = learning_rate * observed.force_size * g
    # Without a force the bound is zero.
    return torch.where(size > 0, change.abs() / size, torch.zeros_like(size))


def paper_influence(
    change: Float[Tensor, " tokens"], observed: TokenTerms, updating: Sequence[TokenTerms]
) -> tuple[float, float]:
    """LBK `‖Δ log π‖₂/(√‖A‖·‖p−e‖)` and SignDelta `mean(Δ)/(√‖A‖·‖p−e‖)` of one step.

    Ren & Sutherland (arXiv 2407.10490), under their names. The source leaves two choices open:
    here ‖A‖ is the mean over the answer's tokens of the exact ‖A‖_F, ‖p−e‖ the mean over the
    updating tokens of ‖π − e_y‖. Neither bounds anything as written: ‖A‖ belongs to all the
    logits' change and is under a root, η is missing, and norms are means over tokens.
    `kernel_lower_bound` is a bound.

    **Arguments:**

    - `change`: Δ log π of the answer's tokens over the step, in nats.
    - `observed`: terms of the answer before the step.
    - `updating`: terms of all responses that the step trained on.

    **Returns:** LBK and SignDelta.
    """
    pull = torch.cat([terms.force_size for terms in updating]).mean()
    size = observed.a_frobenius.mean().sqrt() * pull
    return float(change.norm() / size), float(change.mean() / size)


@dataclass(frozen=True)
class SourceMeasures:
    """What the papers' measures say of one step and one answer.

    `lbk`, `sign_delta`: as Ren & Sutherland compute them (`paper_influence`); neither bounds
    anything as written. `kernel_bound`: the largest `kernel_lower_bound` of the answer's tokens, of
    the measured change. It bounds ‖K‖₂ between the answer's tokens and the step's from below where
    the step is SGD without momentum and weight decay, up to the step's residual.
    """

    step: int
    functional: str
    lbk: float
    sign_delta: float
    kernel_bound: float


def source_measures(
    record: StepRecord,
    name: str,
    before: TokenTerms,
    after: TokenTerms,
    updating: Sequence[TokenTerms],
) -> SourceMeasures:
    """A step's measures on the answer of this name, by its terms at both ends of the step."""
    change = after.logp - before.logp
    lbk, sign_delta = paper_influence(change, before, updating)
    rate = record.facts.learning_rate * record.facts.clip_factor
    bound = kernel_lower_bound(change, before, updating, rate)
    return SourceMeasures(record.facts.step, name, lbk, sign_delta, float(bound.max()))
