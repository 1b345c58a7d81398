"""Audit of preference pairs: how a step on each would move its own and all chosen answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import Totals, by_length, count_totals
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.probes.overlap import edit_distance
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_arithmetic, check_response
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import at_head, subspace
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.split import objective_batch
from dynolab.objectives.pairs import PairObjective
from dynolab.results.audit import Band, PairAudit
from dynolab.training.step_record import RecordedExample

PIECE = 2**20
"""Numbers of a gradient that are multiplied at once: products in float64 take their own memory."""


def audit_pairs(
    policy: PolicyFunction,
    pairs: Sequence[EncodedExample],
    objective: PairObjective[Any],
    *,
    heldout: Sequence[EncodedExample] = (),
    batch_tokens: int = 4_096,
    on_pair: Callable[[int], object] = lambda done: None,
) -> list[PairAudit]:
    """Effect of a gradient step of learning rate one, pair by pair, exact to first order.

    Let `g± = ∇ Σ_l log π(y±_l)`, and let the objective weight chosen tokens by c₊ and rejected ones
    by −c₋, one number per response. A step on the pair alone moves the parameters by
    `−∇L = c₊ g₊ − c₋ g₋`, and its own chosen answer by

        Δ log π(y⁺) = ⟨g₊, −∇L⟩ = c₊ ‖g₊‖² − c₋ ⟨g₊, g₋⟩   (pull up, push down).

    The pull up is never negative if c₊ > 0. The push down does the squeezing: it outweighs the pull
    if the answers' gradients point the same way and the rejected one's is longer. The rejected
    answer changes by `c₊ ⟨g₊, g₋⟩ − c₋ ‖g₋‖²`, and both signs say where c₊/c₋ lies to the band in
    which the one is kept and the other falls (`dynolab.results.audit.Band`).

    The reference is the policy itself, as at the start of preference training.

    Cost: a forward and a backward per response and another per training pair's chosen answer, one
    response at a time, and batched forward-mode passes; beside the weights it holds two tensors of
    their size. A pair's responses do not share a prompt forward, because each response's backward
    would then run over the other's tokens too.

    **Arguments:**

    - `pairs`: the training pairs; `from_all` and `on_all` are means over them.
    - `heldout`: pairs to audit that are not trained on.
    - `batch_tokens`: bound on sequences × padded length of one forward-mode pass.
    - `on_pair`: called with the number of pairs whose gradients are taken; what follows is quick.

    **Returns:** rows in the order of the pairs, training pairs first.

    **Raises:** `ConfigError` for no pairs, responses that the model cannot score, or 16-bit
    arithmetic.
    """
    check_arithmetic(policy.dtype, "products of gradients of 8 significant bits have no sign")
    if not pairs:
        raise ConfigError("pairs", [], "give at least one pair to audit")
    all_pairs = [*pairs, *heldout]
    sides: list[Encoded] = []
    for pair in all_pairs:
        chosen, rejected = _responses(pair)
        check_response(f"pair {pair.id}.chosen", chosen, policy.causal)
        check_response(f"pair {pair.id}.rejected", rejected, policy.causal)
        sides += [chosen, rejected]
    # Before the sums: measuring it takes tensors of the weights' size.
    derivatives_of(policy).require("forward")
    names = subspace(policy)
    totals = count_totals(pairs, objective.sides)
    step = _zeros(policy, names)
    figures = []
    for number, pair in enumerate(all_pairs):
        into = (step, 1 / len(pairs)) if number < len(pairs) else None
        figures.append(_pair_figures(policy, pair, objective, totals, names, into))
        on_pair(number + 1)
    all_chosen = [pair.chosen for pair in all_pairs]
    from_all = _changes_along(policy, all_chosen, step, batch_tokens)
    # One of the two sums at a time: a large model leaves no room for both.
    step.clear()
    mean = _mean_gradient(policy, names, all_chosen[: len(pairs)])
    on_sides = _changes_along(policy, sides, mean, batch_tokens).view(-1, 2)
    rows = []
    for (up, down, facts), change, on_side in zip(figures, from_all, on_sides, strict=True):
        on_all = up * float(on_side[0]) - down * float(on_side[1])
        rows.append(PairAudit(**facts, from_all=float(change), on_all=on_all))
    return rows


def _pair_figures(
    policy: PolicyFunction,
    pair: EncodedExample,
    objective: PairObjective[Any],
    totals: Totals,
    names: set[str],
    into: tuple[Weights, float] | None,
) -> tuple[float, float, dict[str, Any]]:
    """A pair's token weights c₊ and c₋, and the audit figures that depend on the pair alone.

    Adds `factor (c₊ g₊ − c₋ g₋)` to a sum, if one is given.

    Only g₊ is held as a whole: each of g₋'s tensors is used and released as the backward pass makes
    it.
    """
    responses = _responses(pair)
    chosen, rejected = (_Scored.of(policy, names, response) for response in responses)
    up, down = _token_weights(policy, pair, objective, totals, (chosen.logps, rejected.logps))
    plus: dict[str, Tensor] = {}
    chosen.differentiate(plus.__setitem__)
    squares = [_inner(g, g) for g in plus.values()]
    products: list[Tensor] = []
    rejected_squares: list[Tensor] = []

    def use(name: str, minus: Tensor) -> None:
        rejected_squares.append(_inner(minus, minus))
        if name in plus:
            products.append(_inner(plus[name], minus))
        if into is not None:
            into[0][name].add_(minus, alpha=-down * into[1])

    rejected.differentiate(use)
    if into is not None:
        for name, g in plus.items():
            into[0][name].add_(g, alpha=up * into[1])
    pull, push = up * _sum(squares), -down * _sum(products)
    rejected_force = up * _sum(products) - down * _sum(rejected_squares)
    tokens = [response.ids[response.prompt_length :] for response in responses]
    logp = float(chosen.logps.double().sum())
    return (
        up,
        down,
        {
            "pair_id": pair.id,
            "split": "train" if into is not None else "heldout",
            "chosen_tokens": len(tokens[0]),
            "rejected_tokens": len(tokens[1]),
            "chosen_logp": logp,
            "pull_up": pull,
            "push_down": push,
            "force": pull + push,
            "rejected_force": rejected_force,
            "band": _band(pull + push, rejected_force),
            "ches": float(ches(chosen.hidden, rejected.hidden)),
            "ches_per_token": float(ches_per_token(chosen.hidden, rejected.hidden)),
            "likelihood_gap": logp - float(rejected.logps.double().sum()),
            "edit_distance": edit_distance(*tokens),
        },
    )


def _band(force: float, rejected_force: float) -> Band:
    if force < 0:
        return "below"
    return "above" if rejected_force > 0 else "inside"


def _responses(pair: EncodedExample) -> tuple[Encoded, Encoded]:
    if pair.rejected is None:
        raise ConfigError(f"pair {pair.id}", None, "an audit needs a rejected answer in every pair")
    return pair.chosen, pair.rejected


@dataclass(frozen=True)
class _Scored:
    """A response's log-probabilities and last hidden states, before its backward pass."""

    logps: Float[Tensor, " tokens"]
    hidden: Float[Tensor, "tokens features"]
    leaves: dict[str, Tensor]
    total: Float[Tensor, ""]

    @classmethod
    def of(cls, policy: PolicyFunction, names: set[str], response: Encoded) -> _Scored:
        """One forward pass."""
        leaves = {name: policy.weights[name].detach().requires_grad_() for name in sorted(names)}
        hidden: list[Tensor] = []

        def keep(features: Tensor, output: Tensor) -> Tensor:
            hidden.append(features.detach())
            return output

        batch = policy.batch([response])
        with at_head(policy, keep):
            logps = policy.logps(leaves, batch)
        return cls(logps.detach(), hidden[0], leaves, logps.sum())

    def differentiate(self, use: Callable[[str, Tensor], None]) -> None:
        """Calls `use` on each parameter's gradient of Σ log π as soon as it is there, but keeps
        none; a parameter that the response does not depend on has none.
        """

        def hook(name: str) -> Callable[[Tensor], None]:
            def give(leaf: Tensor) -> None:
                gradient, leaf.grad = leaf.grad, None
                assert gradient is not None
                use(name, gradient)

            return give

        for name, leaf in self.leaves.items():
            leaf.register_post_accumulate_grad_hook(hook(name))
        self.total.backward()


def _token_weights(
    policy: PolicyFunction,
    pair: EncodedExample,
    objective: PairObjective[Any],
    totals: Totals,
    logps: Sequence[Float[Tensor, " tokens"]],
) -> tuple[float, float]:
    """c₊ and c₋ of the pair in a step on all pairs, times their number.

    They are those of a step on this pair alone, unless the loss has a mean over the step's tokens.
    The reference is the policy itself.
    """
    chosen, rejected = (side.tolist() for side in logps)
    example = RecordedExample(
        id=pair.id,
        chosen=pair.chosen,
        rejected=pair.rejected,
        chosen_reference=chosen,
        rejected_reference=rejected,
        wins=pair.wins,
        weight=pair.weight,
    )
    batch = objective_batch([example], objective, totals, policy)
    token_weights = objective.token_weights(torch.cat(list(logps)), batch) * totals.examples
    up, down = token_weights.split([len(side) for side in logps])
    if (up != up[0]).any() or (down != down[0]).any():
        raise ConfigError(
            "objective",
            type(objective.config).__name__,
            "weighs an answer's tokens differently; an audit takes one weight for each answer",
        )
    return float(up[0]), -float(down[0])


def _mean_gradient(
    policy: PolicyFunction, names: set[str], responses: Sequence[Encoded]
) -> dict[str, Tensor]:
    """Mean of `∇ Σ_l log π(y_l)` over responses."""
    mean = _zeros(policy, names)

    def add(name: str, gradient: Tensor) -> None:
        mean[name].add_(gradient, alpha=1 / len(responses))

    for response in responses:
        _Scored.of(policy, names, response).differentiate(add)
    return mean


def _changes_along(
    policy: PolicyFunction, responses: Sequence[Encoded], direction: Weights, batch_tokens: int
) -> Float[Tensor, " responses"]:
    """`∂ Σ_l log π(y_l) / ∂θ · d` of every response."""
    moved = torch.zeros(len(responses), dtype=torch.float64)
    for members in by_length(responses, batch_tokens):
        batch = policy.batch([responses[member] for member in members])
        (change,) = policy.change_along({}, [direction], batch)
        moved[members] = batch.sequence_sum(change.double()).cpu()
    return moved


def _zeros(policy: PolicyFunction, names: set[str]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(policy.weights[name]) for name in sorted(names)}


def _inner(left: Tensor, right: Tensor) -> Float[Tensor, ""]:
    """⟨left, right⟩ of one parameter, accumulated in float64, some rows at a time."""
    rows = max(1, PIECE * len(left) // left.numel())
    pieces = zip(left.split(rows), right.split(rows), strict=True)
    return torch.stack([(left * right).sum(dtype=torch.float64) for left, right in pieces]).sum()


def _sum(products: Sequence[Float[Tensor, ""]]) -> float:
    return float(torch.stack(list(products)).sum()) if products else 0.0


def ches(
    chosen: Float[Tensor, "chosen features"], rejected: Float[Tensor, "rejected features"]
) -> Float[Tensor, ""]:
    """`⟨Σ h⁺, Σ h⁻⟩ − ‖Σ h⁺‖²`, h the last hidden states that predict a response's tokens.

    Centred hidden embedding similarity (Razin et al., *Unintentional Unalignment*, arXiv
    2410.08847, def. 2): the higher, the more the chosen answer is expected to fall. The
    pair's exact force on its own chosen answer reduces to it if only the last layer moves and all
    predictions are taken to be alike.
    """
    total = chosen.sum(0)
    return total @ rejected.sum(0) - total @ total


def ches_per_token(
    chosen: Float[Tensor, "chosen features"], rejected: Float[Tensor, "rejected features"]
) -> Float[Tensor, ""]:
    """Length-normalised CHES: means in place of sums, so that long answers do not dominate."""
    mean = chosen.mean(0)
    return mean @ rejected.mean(0) - mean @ mean
