"""The push of an example of a recorded step on one answer, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import Encoded
from dynolab.data.token_texts import token_strings
from dynolab.errors import ConfigError
from dynolab.forces.function.checks import check_items
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import Weights, flatten, gradients, products
from dynolab.forces.ledger.measures import Measure
from dynolab.forces.ledger.pushes import side_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.map.costs import memory_for
from dynolab.forces.map.weighted import WeightedResponse, weighted_of
from dynolab.forces.step.one_step import midpoint
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import UpdateSplit, objective_logps, record_batch, split_step
from dynolab.forces.step.step_forces import StepForces
from dynolab.objectives import build_objective
from dynolab.results.study import TokenMap
from dynolab.training.step_record import StepRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MAP_TOKENS = 128
"""Tokens of an answer that a token map has room for."""

TOGETHER = 64
"""Gradients of updating tokens that are multiplied at once."""


def build_token_map(
    record: StepRecord,
    policy: PolicyFunction,
    tokenizer: PreTrainedTokenizerBase,
    *,
    stage: str,
    updating_id: str,
    observed_id: str,
    observed: Encoded,
    observed_kind: str = "chosen",
    step: UpdateSplit | StepForces | None = None,
) -> TokenMap:
    """The map of one example of a recorded step on one observed response, with its tokens.

    The columns of each side are scaled to what the step would have lacked without that side of the
    example (`side_pushes`). Where that has another sign than their sum, the side stays as it is.

    **Arguments:** `step`: the replayed step, where it is there (`split_step`, `step_forces`).
    """
    ids = [example.id for example in record.examples]
    if updating_id not in ids:
        raise ConfigError("updating_id", updating_id, f"give an example of the step: {ids}")
    updating = ids.index(updating_id)
    step = step or split_step(record, policy)
    force = token_forces(record, policy, step.update, updating, observed)
    tokens: dict[int, list[str]] = {CHOSEN: [], REJECTED: []}
    sides = build_objective(record.facts.objective).sides
    for side, sequence in record.examples[updating].responses(sides):
        tokens[side] += token_strings(sequence, tokenizer)
    border = len(tokens[CHOSEN])
    pushes = side_pushes(record, gradients_of(record, policy), step.gradient, [observed], updating)
    for columns, push in zip((force[:, :border], force[:, border:]), pushes[0], strict=True):
        ratio = float(push) / float(columns.sum() or 1.0)
        if ratio > 0:
            columns *= ratio
    return TokenMap(
        stage=stage,
        step=record.facts.step,
        observed_id=observed_id,
        observed_kind=observed_kind,
        updating_id=updating_id,
        learning_rate=record.facts.learning_rate,
        observed_tokens=token_strings(observed, tokenizer),
        chosen_tokens=tokens[CHOSEN],
        rejected_tokens=tokens[REJECTED],
        force=force.tolist(),
    )


def token_forces(
    record: StepRecord,
    policy: PolicyFunction,
    update: FrozenUpdate,
    updating: int,
    observed: Encoded,
    *,
    at: Weights | None = None,
    measure: Measure | None = None,
) -> Float[Tensor, "observed updating"]:
    """`F[m,l] = ⟨∇log π_m, scale ⊙ ∇s_l⟩`, `s_l = c_l log π_l` (exact).

    A backward pass for every token of either side, and products of their gradients; `scale` is the
    optimizer's frozen linear map. This is `−η A_m K_{m,l} G_l` (Ren & Sutherland, arXiv 2407.10490,
    prop. 1) with the optimizer's preconditioner inside K. `Σ_l F` is the first order along this
    example's share of from_chosen + from_rejected. A derivative forwards in place of a backward
    pass takes ten times as long where prompts are long.

    **Arguments:**

    - `update`: the recorded step's frozen map (`split_step`).
    - `updating`: position of the updating example in `record.examples`.
    - `at`: where the observed response is differentiated; default: the midpoint of the step.
    - `measure`: of the observed tokens, in place of their log π (`ledger.measures`).

    **Returns:** nats; columns are the example's chosen tokens, then its rejected ones; for a
    group, tokens of the completions that were pushed up, then of the others.
    """
    check_items(policy.causal, observed=[observed])
    place = midpoint(record.before, record.after) if at is None else at
    objective = build_objective(record.facts.objective)
    example, batch = record.examples[updating], record_batch(record, policy, [updating])
    logps = objective_logps(policy, policy.cast(record.before), batch, objective)
    rates = objective.token_weights(logps, batch).reshape(len(logps), -1)
    # Response by response: a pair's sequences may differ much in length.
    responses = weighted_of([example], objective, batch, rates)
    order = batch.side.argsort(stable=True).tolist()
    scale = flatten(policy.cast(update.scale))
    together = max(1, memory_for(policy.home, None) // (2 * scale.nbytes))
    response = WeightedResponse.own(observed, policy)
    if measure is not None:
        response = WeightedResponse.measured(observed, policy, policy.cast(place), measure)
    observed_gradients = _token_gradients(policy, place, response, update)
    rows = []
    for observed_part in _stacked(observed_gradients, together):
        scaled = observed_part.mul_(scale)
        parts = []
        for number in order:
            updating_gradients = _token_gradients(policy, record.before, responses[number], update)
            for updating_part in _stacked(updating_gradients, min(together, TOGETHER)):
                parts.append(products(scaled, updating_part))
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows).to(policy.dtype)


def _stacked(
    gradients: Iterator[Float[Tensor, " parameters"]], together: int
) -> Iterator[Float[Tensor, "tokens parameters"]]:
    """Some gradients at a time, as rows."""
    while rows := list(islice(gradients, together)):
        stacked = torch.stack(rows)
        rows.clear()  # frees the memory
        yield stacked


def _token_gradients(
    policy: PolicyFunction, at: Weights, response: WeightedResponse, update: FrozenUpdate
) -> Iterator[Float[Tensor, " parameters"]]:
    """∇s of every token of a response, by the parameters that the step moves."""
    cast = policy.cast(at)
    leaves = {name: cast[name].requires_grad_() for name in update.scale}
    with torch.enable_grad():
        scores = response.scores(policy, {**cast, **leaves}, forward_mode=False).unbind()
    for score in scores:
        yield flatten(gradients(score, leaves))
