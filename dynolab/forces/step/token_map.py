"""One recorded pair's token force map; `forces.map` computes many responses on many."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights, gradients
from dynolab.forces.map.problem import weighted_of
from dynolab.forces.map.weighted import scores_along
from dynolab.forces.step.one_step import midpoint
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import objective_logps, record_batch, split_step
from dynolab.objectives import build_objective
from dynolab.results.study import TokenMap
from dynolab.training.step_record import StepRecord

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAP_TOKENS = 128
"""Tokens of an answer that a token map has room for."""


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
    update: FrozenUpdate | None = None,
) -> TokenMap:
    """The map of one example of a recorded step on one observed response, with its tokens.

    **Arguments:** `update`: the step's frozen map, if it is known (`split_step`).
    """
    ids = [example.id for example in record.examples]
    if updating_id not in ids:
        raise ConfigError("updating_id", updating_id, f"give an example of the step: {ids}")
    updating = ids.index(updating_id)
    known = update or split_step(record, policy).update
    force = token_forces(record, policy, known, updating, observed)

    tokens: dict[int, list[str]] = {CHOSEN: [], REJECTED: []}
    sides = build_objective(record.facts.objective).sides
    for side, sequence in record.examples[updating].responses(sides):
        tokens[side] += token_strings(sequence, tokenizer)
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
) -> Float[Tensor, "observed updating"]:
    """`F[m,l] = ∂ log π_m/∂θ · (−scale ⊙ ∇_θ(−c_l log π_l))`, row by row (exact).

    For every observed token m: a VJP gives ∇log π_m, the optimizer's frozen linear map turns it
    into a direction, and along that a JVP of the example's scores `s_l = c_l log π_l`, at the
    weights before the step, gives the pushes of all its tokens l. This is
    `−η A_m K_{m,l} G_l` (Ren & Sutherland, arXiv 2407.10490, prop. 1) with the optimizer's
    preconditioner inside K. `Σ_l F` is the first order along this example's share of
    from_chosen + from_rejected.

    **Arguments:**

    - `update`: the recorded step's frozen map (`split_step`).
    - `updating`: position of the updating example in `record.examples`.
    - `at`: where the observed response is differentiated; default: the midpoint of the step.

    **Returns:** nats; columns are the example's chosen tokens, then its rejected ones; for a
    group, tokens of the completions that were pushed up, then of the others.
    """
    place = midpoint(record.before, record.after) if at is None else at
    objective = build_objective(record.facts.objective)
    example, batch = record.examples[updating], record_batch(record, policy, [updating])
    logps = objective_logps(policy, policy.cast(record.before), batch, objective)
    rates = objective.token_weights(logps, batch).reshape(len(logps), -1)
    # Response by response: a pair's sequences may differ much in length.
    responses = weighted_of([example], objective, batch, rates)
    order = batch.side.argsort(stable=True).tolist()
    directions = _directions(policy, place, observed, update)
    rows = []
    while some := list(islice(directions, policy.tangents_together)):
        parts = [scores_along(policy, record.before, some, [responses[n]]) for n in order]
        rows.append(torch.cat(parts, 1))
        some.clear()  # before the next are made
    return torch.cat(rows)


def _directions(
    policy: PolicyFunction, at: Weights, observed: Encoded, update: FrozenUpdate
) -> Iterator[Weights]:
    """`scale ⊙ ∇log π_m` of every observed token m."""
    leaves = {name: w.requires_grad_() for name, w in policy.cast(at).items()}
    with torch.enable_grad():
        batch = policy.batch([observed])
        logits = policy.logits(leaves, batch, forward_mode=False)
        logps = View.realised(batch).logps(logits).squeeze(-1).unbind()
    for logp in logps:
        gradient = gradients(logp, {name: leaves[name] for name in update.scale})
        yield {name: update.scale[name].to(g) * g for name, g in gradient.items()}


def token_strings(encoded: Encoded, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The texts of a response's tokens, as a person reads them."""
    return [token_string(token, tokenizer) for token in encoded.ids[encoded.prompt_length :]]


def token_string(token: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """A token's text: with the space that sentencepiece drops at a text's start, and as the
    vocabulary writes it where it is a part of a character.
    """
    text, piece = str(tokenizer.decode([token])), str(tokenizer.convert_ids_to_tokens(token))
    if token in tokenizer.all_special_ids:
        return text
    if "\ufffd" in text:
        return piece
    return f" {text}" if piece.startswith("▁") and not text.startswith(" ") else text
