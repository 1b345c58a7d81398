"""The ladder: how much of the theory a forecast of a step needs, rung by rung.

To first order a step changes log π at position m of an answer by `Δ = −A_m Σ_l K_{m,l} G_l`, with
the objective's force G at every position l that the step trained on. Each rung keeps more of it:

- `logits`: `K = I` at the position itself and nothing else, the rule of one softmax;
- `own_token`: K of all weights, but only from the position itself;
- `head`: the head alone at fixed features, from all positions of its own example;
- `table`: the head's table in all its uses, where it is the embedding's, too (tied);
- `weights`: all weights, from its own example;
- `batch`: all weights, the whole step: all examples, momentum and decay.

The optimizer's preconditioner, learning rate and clip factor are in all rungs but the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import jvp

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.layers import at_head
from dynolab.forces.function.logit_function import Weights
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import head_module
from dynolab.forces.function.views import View
from dynolab.forces.step.one_step import change_of
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import objective_logps, record_batch, split_step
from dynolab.objectives import Objective, build_objective, force, read_logps
from dynolab.results.squeezing import LadderRung, Rung
from dynolab.squeezing.forecast import SIDES
from dynolab.statistics import auc
from dynolab.training.step_record import StepRecord

EXAMPLES, POSITIONS = 4, 4
"""Examples of a step, and positions of each of their answers, that the ladder is measured on: every
position needs a backward pass and a forward derivative of its own."""


@dataclass(frozen=True)
class Pictures:
    """Some positions of one answer: Δ log π of the whole vocabulary, by rung and measured."""

    label: Int[Tensor, " positions"]
    before: Float[Tensor, "positions vocabulary"]
    measured: Float[Tensor, "positions vocabulary"]
    predicted: dict[Rung, Float[Tensor, "positions vocabulary"]]


def ladder(record: StepRecord, policy: PolicyFunction, *, training: str) -> list[LadderRung]:
    """Compares every rung's forecast of a recorded step with its effect, side by side.

    **Arguments:** as of `forecasts`.

    **Returns:** one row for each side and rung; `table` is left out where head and embedding do not
    share one table, and everything where the step trained no position.

    **Raises:** `ConfigError` for a model without forward derivatives.
    """
    objective = build_objective(record.facts.objective)
    update = split_step(record, policy).update
    seen: dict[int, list[Pictures]] = {}
    for number in range(min(EXAMPLES, len(record.examples))):
        for side, answer in pictures(record, policy, objective, update, number):
            seen.setdefault(side, []).append(answer)
    return [
        row
        for side, answers in sorted(seen.items())
        for row in _rows(record, training, side, answers)
    ]


def pictures(
    record: StepRecord,
    policy: PolicyFunction,
    objective: Objective,
    update: FrozenUpdate,
    number: int,
) -> Iterator[tuple[int, Pictures]]:
    """One example's answers, seen at some of their trained positions."""
    batch = record_batch(record, policy, [number])
    before = policy.cast(record.before)
    with torch.no_grad():
        logits = policy.logits(before, batch)
        rates = objective.token_weights(read_logps(objective, logits, batch), batch)
        rule = View.vocabulary().changes(logits, -force(rates, logits, batch))
        start = logits.log_softmax(-1)
        measured = policy.logits(policy.cast(record.after), batch).log_softmax(-1) - start
    trained = (rates != 0).reshape(len(rates), -1).any(1)
    gradient = _gradient(policy, before, batch, objective, rates)
    own = update.along(gradient)
    table, embeds = _table(policy)
    directions: dict[Rung, Weights] = {
        "weights": own,
        "batch": policy.cast(change_of(record.before, record.after)),
    }
    if table in own and embeds:
        directions["table"] = {table: own[table]}
    view = View.vocabulary()
    moved = policy.change_along(before, directions.values(), batch, view=view)
    predicted: dict[Rung, Tensor] = {"logits": rule, **dict(zip(directions, moved, strict=True))}
    if table in own:
        predicted["head"] = _by_head(policy, before, batch, objective, rates, update, table)
    for side in objective.sides:
        places = ((batch.token_side == side) & trained).nonzero()[:, 0]
        if not len(places):
            continue
        picked = places[torch.linspace(0, len(places) - 1, min(POSITIONS, len(places))).long()]
        alone = [
            policy.change_along(
                before,
                [update.along(_gradient(policy, before, batch, objective, rates, [place]))],
                batch,
                view=view,
            )[0, place]
            for place in picked.tolist()
        ]
        yield (
            side,
            Pictures(
                label=batch.token[picked],
                before=start[picked],
                measured=measured[picked],
                predicted={
                    **{rung: change[picked] for rung, change in predicted.items()},
                    "own_token": torch.stack(alone),
                },
            ),
        )


def _gradient(
    policy: PolicyFunction,
    before: Weights,
    batch: TokenBatch,
    objective: Objective,
    rates: Tensor,
    places: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Gradient of the loss through all tokens of the batch, or through some."""
    leaves = {name: w.detach().requires_grad_() for name, w in before.items()}
    with torch.enable_grad():
        loss = -(rates * objective_logps(policy, leaves, batch, objective)).reshape(len(rates), -1)
        chosen = loss if places is None else loss[list(places)]
        gradients = torch.autograd.grad(chosen.sum(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


@torch.no_grad()
def _by_head(
    policy: PolicyFunction,
    before: Weights,
    batch: TokenBatch,
    objective: Objective,
    rates: Tensor,
    update: FrozenUpdate,
    table: str,
) -> Float[Tensor, "tokens vocabulary"]:
    """First order of the head's own change at fixed features."""
    leaf = before[table].detach().requires_grad_()
    zero = torch.zeros_like(leaf)

    def with_leaf(features: Tensor, output: Tensor) -> Tensor:
        return output.detach() + F.linear(features.detach(), leaf - leaf.detach())

    with torch.enable_grad(), at_head(policy, with_leaf):
        loss = -(rates * objective_logps(policy, before, batch, objective)).sum()
        (gradient,) = torch.autograd.grad(loss, [leaf])
    change = update.along({table: gradient})[table]

    def logits(weights: Weights) -> Tensor:
        def moved(features: Tensor, output: Tensor) -> Tensor:
            return output + F.linear(features, weights["head"])

        with at_head(policy, moved):
            return policy.logits(before, batch)

    value = policy.logits(before, batch)
    along: Tensor = jvp(logits, ({"head": zero},), ({"head": change},))[1]
    return View.vocabulary().changes(value, along)


def _table(policy: PolicyFunction) -> tuple[str, bool]:
    """Name of the head's weight, and whether it is the embedding's, too."""
    weight = head_module(policy.causal).weight
    names = {id(parameter): name for name, parameter in policy.model.named_parameters()}
    embedding: nn.Module = policy.causal.get_input_embeddings()  # type: ignore[operator]
    return names.get(id(weight), ""), embedding.weight is weight


def _rows(
    record: StepRecord, training: str, side: int, answers: Sequence[Pictures]
) -> Iterator[LadderRung]:
    """One side's rungs, over all tokens but each position's own."""
    label, before, measured = (
        torch.cat([getattr(answer, name) for answer in answers])
        for name in ("label", "before", "measured")
    )
    others = torch.ones_like(before, dtype=torch.bool).scatter_(1, label[:, None], False)
    rose = measured[others] > 0
    best = before.masked_fill(~others, -torch.inf).argmax(1, keepdim=True)
    mass = before.exp().gather(1, best)
    flow = float((mass * measured.gather(1, best).expm1()).mean())
    for rung in answers[0].predicted:
        forecast = torch.cat([answer.predicted[rung] for answer in answers])
        yield LadderRung(
            training=training,
            step=record.facts.step,
            side=SIDES[side],
            rung=rung,
            positions=len(label),
            auc=float(auc(forecast[others].cpu().numpy(), rose.cpu().numpy())),
            right=float(((forecast[others] > 0) == rose).double().mean()),
            flow=float((mass * forecast.gather(1, best)).mean()),
            flow_measured=flow,
        )
