"""Audit of preference pairs: how a step on each would move its own and all chosen answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.audit.ches import ches, ches_per_token
from dynolab.data.batches import by_length
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.probes.edit_distance import edit_distance
from dynolab.data.rows import Split
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_arithmetic, check_response
from dynolab.forces.function.layers import at_head
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.step.split import objective_batch, step_totals
from dynolab.objectives.pairs import PairObjective
from dynolab.results.audit import PairAudit
from dynolab.training.step_record import RecordedExample


def audit_pairs(
    policy: PolicyFunction,
    pairs: Sequence[EncodedExample],
    objective: PairObjective[Any],
    *,
    heldout: Sequence[EncodedExample] = (),
    batch_tokens: int = 4_096,
) -> list[PairAudit]:
    """Effect of a gradient step of learning rate one, pair by pair, exact to first order.

    Let `g± = ∇ Σ_l log π(y±_l)`, and let the objective weight chosen tokens by c₊ and rejected ones
    by −c₋, one number per response. A step on the pair alone moves the parameters by
    `−∇L = c₊ g₊ − c₋ g₋`, and its own chosen answer by

        Δ log π(y⁺) = ⟨g₊, −∇L⟩ = c₊ ‖g₊‖² − c₋ ⟨g₊, g₋⟩   (pull up, push down).

    The pull up is never negative if c₊ > 0. The push down does the squeezing: it outweighs the pull
    if the answers' gradients point the same way and the rejected one's is longer.

    The reference is the policy itself, as at the start of preference training.

    Cost: a forward and a backward per response, one response at a time, and a batched forward-mode
    pass with two tangents; beside the weights it holds six tensors of their size. A pair's
    responses do not share a prompt forward, because each response's backward would then run over
    the other's tokens too.

    **Arguments:**

    - `pairs`: the training pairs; `from_all` and `on_all` are means over them.
    - `heldout`: pairs to audit that are not trained on.
    - `batch_tokens`: bound on sequences × padded length of one forward-mode pass.

    **Returns:** rows in the order of the pairs, training pairs first.

    **Raises:** `ConfigError` for no pairs, responses that the model cannot score, or 16-bit
    arithmetic.
    """
    check_arithmetic(policy.dtype, "products of gradients of 8 significant bits have no sign")
    if not pairs:
        raise ConfigError("pairs", [], "give at least one pair to audit")
    all_pairs = [*pairs, *heldout]
    for pair in all_pairs:
        for side, response in zip(("chosen", "rejected"), _responses(pair), strict=True):
            check_response(f"pair {pair.id}.{side}", response, policy.causal)
    names = subspace(policy)
    step, chosen = (_zeros(policy, names) for _ in range(2))
    figures = []
    for number, pair in enumerate(all_pairs):
        sides = [_differentiate(policy, names, response) for response in _responses(pair)]
        up, down = _token_weights(policy, pair, objective, sides)
        if number < len(pairs):
            _add(step, up / len(pairs), sides[0].gradient)
            _add(step, -down / len(pairs), sides[1].gradient)
            _add(chosen, 1 / len(pairs), sides[0].gradient)
        split: Split = "train" if number < len(pairs) else "heldout"
        figures.append(_PairFigures.of(pair, split, sides, up, down))
    moved = _changes_along(policy, all_pairs, [step, chosen], batch_tokens)
    return [own.row(*changes) for own, changes in zip(figures, moved, strict=True)]


@dataclass(frozen=True)
class _ResponseGradient:
    """A response's log-probabilities, `∇ Σ log π`, and last hidden states."""

    logps: Float[Tensor, " tokens"]
    gradient: dict[str, Tensor]
    hidden: Float[Tensor, "tokens features"]


@dataclass(frozen=True)
class _PairFigures:
    """A pair's token weights, and the audit figures that depend on the pair alone."""

    up: float
    down: float
    facts: dict[str, Any]

    @classmethod
    def of(
        cls,
        pair: EncodedExample,
        split: Split,
        sides: Sequence[_ResponseGradient],
        up: float,
        down: float,
    ) -> _PairFigures:
        chosen, rejected = sides
        pull, push = (
            up * _inner(chosen.gradient, chosen.gradient),
            -down * _inner(chosen.gradient, rejected.gradient),
        )
        tokens = [response.ids[response.prompt_length :] for response in _responses(pair)]
        logp = float(chosen.logps.double().sum())
        return cls(
            up,
            down,
            {
                "pair_id": pair.id,
                "split": split,
                "chosen_tokens": len(tokens[0]),
                "rejected_tokens": len(tokens[1]),
                "chosen_logp": logp,
                "pull_up": pull,
                "push_down": push,
                "force": pull + push,
                "ches": float(ches(chosen.hidden, rejected.hidden)),
                "ches_per_token": float(ches_per_token(chosen.hidden, rejected.hidden)),
                "likelihood_gap": logp - float(rejected.logps.double().sum()),
                "edit_distance": edit_distance(*tokens),
            },
        )

    def row(self, chosen: Float[Tensor, " two"], rejected: Float[Tensor, " two"]) -> PairAudit:
        """Adds the effects of the step on all pairs, and of all chosen answers' gradient."""
        on_all = self.up * float(chosen[1]) - self.down * float(rejected[1])
        return PairAudit(**self.facts, from_all=float(chosen[0]), on_all=on_all)


def _responses(pair: EncodedExample) -> tuple[Encoded, Encoded]:
    if pair.rejected is None:
        raise ConfigError(f"pair {pair.id}", None, "an audit needs a rejected answer in every pair")
    return pair.chosen, pair.rejected


def _differentiate(policy: PolicyFunction, names: set[str], response: Encoded) -> _ResponseGradient:
    leaves = {name: policy.weights[name].detach().requires_grad_() for name in sorted(names)}
    hidden: list[Tensor] = []

    def keep(features: Tensor, output: Tensor) -> Tensor:
        hidden.append(features.detach())
        return output

    batch, _ = policy.batch([response])
    with at_head(policy, keep):
        logps = policy.logps(leaves, batch)
    gradients = torch.autograd.grad(logps.sum(), list(leaves.values()), materialize_grads=True)
    return _ResponseGradient(logps.detach(), dict(zip(leaves, gradients, strict=True)), hidden[0])


def _token_weights(
    policy: PolicyFunction,
    pair: EncodedExample,
    objective: PairObjective[Any],
    sides: Sequence[_ResponseGradient],
) -> tuple[float, float]:
    """c₊ and c₋ of a step on this pair alone, with the policy as reference."""
    chosen, rejected = (side.logps.tolist() for side in sides)
    example = RecordedExample(
        id=pair.id,
        chosen=pair.chosen,
        rejected=pair.rejected,
        chosen_reference=chosen,
        rejected_reference=rejected,
        wins=pair.wins,
    )
    batch = objective_batch([example], objective, step_totals([example], objective), policy)
    token_weights = objective.token_weights(torch.cat([side.logps for side in sides]), batch)
    return float(token_weights[0]), -float(token_weights[-1])


def _changes_along(
    policy: PolicyFunction,
    pairs: Sequence[EncodedExample],
    directions: Sequence[Weights],
    batch_tokens: int,
) -> list[Float[Tensor, "sides directions"]]:
    """`∂ Σ_l log π(y_l) / ∂θ · d` of every pair's two responses along each direction."""
    responses = [response for pair in pairs for response in _responses(pair)]
    moved = torch.zeros(len(responses), len(directions), dtype=torch.float64)
    for members in by_length(responses, batch_tokens):
        batch, _ = policy.batch([responses[member] for member in members])
        changes = policy.change_along({}, directions, batch).double()
        sums = [batch.sequence_sum(change) for change in changes]
        moved[members] = torch.stack(sums, dim=1).cpu()
    return list(moved.view(len(pairs), 2, len(directions)))


def _zeros(policy: PolicyFunction, names: set[str]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(policy.weights[name]) for name in sorted(names)}


def _add(total: dict[str, Tensor], factor: float, gradient: Weights) -> None:
    for name, sum_ in total.items():
        sum_.add_(gradient[name], alpha=factor)


def _inner(left: Weights, right: Weights) -> float:
    """⟨left, right⟩ over all parameters, accumulated in float64."""
    products = [(tensor * right[name]).sum(dtype=torch.float64) for name, tensor in left.items()]
    return float(torch.stack(products).sum())
