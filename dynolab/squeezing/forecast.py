"""Compares the first-order prediction of a recorded step with its effect, token by token.

Table `forecasts`: one row for each training, step and side, at the positions of the answers that
the step trained on. Every token but the answer's own is predicted to rise or to fall: of these
`tokens`, `foretold` were predicted to rise, `rose` rose, and `right` moved as predicted. `auc`:
probability that a token that rose had a higher forecast than one that fell; `auc_top`: the same
among the likeliest few of every position; `auc_last_layer`: the same, with the effect of the head's
own change at fixed features as forecast.

`explained` = 1 − Σ(Δ − Δ_head)²/Σ Δ² over the answers' tokens, where Δ is the realised change of
log π and Δ_head the effect of the head's own change at fixed features; `cosine`: of the two;
`agree`: share of tokens on which their signs agree. NaN where there is nothing to compare, for
example if the head does not move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import at_head, head_module
from dynolab.forces.function.weights import Weights
from dynolab.forces.map.breakdown import last_layer_fit
from dynolab.forces.step.one_step import change_of
from dynolab.forces.step.split import step_batches
from dynolab.objectives import build_objective, force, read_logps
from dynolab.statistics import auc
from dynolab.training.step_record import StepRecord

SIDES = {CHOSEN: "chosen", REJECTED: "rejected"}
TOP = 20
"""Number of likeliest tokens per position that `auc_top` compares."""

MOST = 2**20
"""Maximum number of forecasts kept; with a large vocabulary, some positions are skipped."""


@dataclass(frozen=True)
class PositionForecasts:
    """Forecast and realised change of log π at trained positions, of every token but y, in nats.

    `still` is the change by the head's step alone, with fixed features; `realised` and
    `realised_still` are the change and the head's part of it for y.
    """

    forecast: Float[Tensor, "positions others"]
    change: Float[Tensor, "positions others"]
    still: Float[Tensor, "positions others"]
    top: Int[Tensor, "positions top"]
    realised: Float[Tensor, " positions"]
    realised_still: Float[Tensor, " positions"]


def forecasts(
    record: StepRecord, policy: PolicyFunction, *, training: str, batch_tokens: int = 2_048
) -> list[dict[str, Any]]:
    """Checks the rule on a recorded step, separately for each side that it trained on.

    A position's forecast is `−A G`, the first order of a step against the objective's force G on
    its own logits: where G pushes y alone, class i ≠ y rises on a rejected token iff
    `p_i + p_y > Σ_j p_j²`, and on a chosen one the other way round. The rule ignores the other
    positions of the batch, and the features, which the real step moves as well.

    **Arguments:**

    - `policy`: the recorded model; its own weights are used only where the record has none.
    - `training`: name of the training in the rows.

    **Returns:** one row for each side that was pushed.
    """
    objective = build_objective(record.facts.objective)
    stride = _stride(record, policy)
    by_side: dict[int, list[PositionForecasts]] = {}
    for _, batch in step_batches(record.examples, objective, policy, batch_tokens):
        for side, part in _forecast_positions(record, policy, batch, stride):
            by_side.setdefault(side, []).append(part)
    return [_row(record, training, SIDES[side], parts) for side, parts in sorted(by_side.items())]


def _stride(record: StepRecord, policy: PolicyFunction) -> int:
    """Every how many positions one is used, so that forecasts stay within `MOST`."""
    positions = 0
    for example in record.examples:
        positions += sum(answer.response_length for answer in example.named().values())
    vocabulary = policy.causal.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    return -(-positions * vocabulary // MOST)


@torch.no_grad()
def _forecast_positions(
    record: StepRecord, policy: PolicyFunction, batch: TokenBatch, stride: int
) -> Iterator[tuple[int, PositionForecasts]]:
    """Forecasts at the positions of each side that the step pushed."""
    objective = build_objective(record.facts.objective)
    logits = policy.logits(policy.cast(record.before), batch)
    rates = objective.token_weights(read_logps(objective, logits, batch), batch)
    G = force(rates, logits, batch)
    trained = (rates != 0).reshape(len(rates), -1).any(1)
    before = logits.log_softmax(-1)
    change = policy.logits(policy.cast(record.after), batch).log_softmax(-1) - before
    still = moved_by_head(policy, record.before, record.after, batch).log_softmax(-1) - before
    label = batch.token[:, None]
    for side in objective.sides:
        pushed = ((batch.token_side == side) & trained).nonzero()[:, 0][::stride]
        if not len(pushed):
            continue
        start, moved, moved_by_head_alone = before[pushed], change[pushed], still[pushed]
        y = label[pushed]
        others = torch.ones_like(start, dtype=torch.bool).scatter_(1, y, False)
        rule = logp_change(start, -G[pushed])
        likely = start[others].view(len(pushed), -1)
        forecasts_here = PositionForecasts(
            forecast=rule[others].view_as(likely),
            change=moved[others].view_as(likely),
            still=moved_by_head_alone[others].view_as(likely),
            top=likely.topk(min(TOP, likely.shape[1]), dim=1).indices,
            realised=moved.gather(1, y)[:, 0],
            realised_still=moved_by_head_alone.gather(1, y)[:, 0],
        )
        yield side, forecasts_here


def _row(
    record: StepRecord, training: str, side: str, parts: list[PositionForecasts]
) -> dict[str, Any]:
    def joined(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])

    forecast, change, top = joined("forecast"), joined("change"), joined("top")
    realised = joined("realised").double()
    head = joined("realised_still").double()
    rises, rose = forecast > 0, change > 0
    picture = last_layer_fit(realised, head)
    return {
        "training": training,
        "step": record.facts.step,
        "side": side,
        "positions": len(realised),
        "tokens": rose.numel(),
        "foretold": int(rises.sum()),
        "rose": int(rose.sum()),
        "right": int((rises == rose).sum()),
        "auc": _auc(forecast, rose),
        "auc_top": _auc(forecast.gather(1, top), rose.gather(1, top)),
        "auc_last_layer": _auc(joined("still"), rose),
        "explained": float(1 - (realised - head).square().sum() / realised.square().sum()),
        "cosine": picture.cosine,
        "agree": picture.sign_agreement,
    }


def _auc(forecast: Tensor, rose: Tensor) -> float:
    return float(auc(forecast.flatten().cpu().numpy(), rose.flatten().cpu().numpy()))


@torch.no_grad()
def logp_change(
    logp: Float[Tensor, "*batch classes"], moved: Float[Tensor, "*batch classes"]
) -> Float[Tensor, "*batch classes"]:
    """`Δ log p = A dz + O(dz²)`, in nats, for logits that move by dz: `A = I − 1pᵀ`."""
    return moved - (logp.exp() * moved).sum(-1, keepdim=True)


def moved_by_head(
    policy: PolicyFunction, before: Weights, after: Weights, batch: TokenBatch
) -> Float[Tensor, "tokens vocabulary"]:
    """Logits after a step of the head alone: from its output `W h + b + ΔW h + Δb`.

    h are the features before the step, so this is the unconstrained-features model of it. After a
    gradient step its first order is the sum of `Breakdown.head` over the updating tokens, unless
    head and embedding share one table: ΔW then includes the step of the embedding's gradient.
    If the head does not move, as under adapters, the logits do not change.
    """
    names = head_names(policy)
    head_weights = {name: before[name] for name in names.values() if name in before}
    change = policy.cast(change_of(head_weights, after))

    def moved(features: Tensor, output: Tensor) -> Tensor:
        return output + head_output(features, change, names)

    with at_head(policy, moved):
        return policy.logits(policy.cast(before), batch)


def head_names(policy: PolicyFunction) -> dict[str, str]:
    """Names of the head's `weight` and `bias` among the model's parameters."""
    head = head_module(policy.causal)
    names = {id(parameter): name for name, parameter in policy.model.named_parameters()}
    parts = {part: names.get(id(getattr(head, part, None))) for part in ("weight", "bias")}
    return {part: name for part, name in parts.items() if name is not None}


def head_output(
    features: Float[Tensor, "tokens features"], weights: Weights, names: Mapping[str, str]
) -> Tensor:
    """`W h + b`, of the parts of the head that are among the weights.

    **Arguments:** `names`: of the head's parts (`head_names`).
    """
    head_parts = {part: weights[name] for part, name in names.items() if name in weights}
    product = features @ head_parts["weight"].T if "weight" in head_parts else torch.zeros(())
    return product + head_parts["bias"] if "bias" in head_parts else product
