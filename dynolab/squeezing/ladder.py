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

Table `ladder`: one row for each training, step, side and rung, at some of the side's positions and
over all tokens but each position's own. `auc`: the probability that a token that rose had a higher
forecast than one that fell; `right`: the share whose sign was foretold; `flow`: the forecast change
of probability of the likeliest other token, its mean over positions, in units of probability;
`flow_measured`: the realised one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import jvp

from dynolab.data.batches import TokenBatch
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import at_head, head_module
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.step.one_step import change_of
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import objective_logps, record_batch, split_step
from dynolab.objectives import Objective, build_objective, force, read_logps
from dynolab.squeezing.forecast import SIDES, head_names, head_output
from dynolab.statistics import auc
from dynolab.training.step_record import StepRecord

EXAMPLES, POSITIONS = 4, 4
"""Examples of a step, and positions of each of their answers, that the ladder is measured on: every
position needs a backward pass and a forward derivative of its own."""


EVERY_TOKEN = View.vocabulary()


@dataclass(frozen=True)
class Pictures:
    """Some positions of one answer: Δ log π of the whole vocabulary, by rung and measured."""

    label: Int[Tensor, " positions"]
    before: Float[Tensor, "positions vocabulary"]
    measured: Float[Tensor, "positions vocabulary"]
    predicted: dict[str, Float[Tensor, "positions vocabulary"]]


def ladder(record: StepRecord, policy: PolicyFunction, *, training: str) -> list[dict[str, Any]]:
    """Compares every rung's forecast of a recorded step with its effect, side by side.

    **Arguments:** as of `forecasts`.

    **Returns:** one row for each side and rung; `table` is left out where head and embedding do not
    share one table, and everything where the step trained no position.

    **Raises:** `ConfigError` for a model without forward derivatives.
    """
    update = split_step(record, policy).update
    by_side: dict[int, list[Pictures]] = {}
    for number in range(min(EXAMPLES, len(record.examples))):
        for side, answer in pictures(record, policy, update, number):
            by_side.setdefault(side, []).append(answer)
    rows: list[dict[str, Any]] = []
    for side, answers in sorted(by_side.items()):
        rows += _rows(record, training, side, answers)
    return rows


def pictures(
    record: StepRecord, policy: PolicyFunction, update: FrozenUpdate, number: int
) -> Iterator[tuple[int, Pictures]]:
    """One example's answers by side, at some of their trained positions.

    **Arguments:** `update`: the step's map from gradients to changes (`split_step`); `number`: of
    the example in the record.
    """
    example = _Example.of(record, policy, update, number)
    batch, logits, rates = example.batch, example.logits, example.rates
    example_update = update.along(example.gradient())
    directions: dict[str, Weights] = {
        "weights": example_update,
        "batch": policy.cast(change_of(record.before, record.after)),
    }
    head = {part: name for part, name in head_names(policy).items() if name in example_update}
    if "weight" in head and _embeds(policy):
        directions["table"] = {head["weight"]: example_update[head["weight"]]}
    by_logits = EVERY_TOKEN.changes(logits, -force(rates, logits, batch))
    along = example.moved_along(directions.values())
    predicted = {"logits": by_logits, **dict(zip(directions, along, strict=True))}
    if "weight" in head:
        predicted["head"] = example.moved_by_head(head)
    before = logits.log_softmax(-1)
    with torch.no_grad():
        after = policy.logits(policy.cast(record.after), batch).log_softmax(-1)
    trained = (rates != 0).reshape(len(rates), -1).any(1)
    for side in build_objective(record.facts.objective).sides:
        places = ((batch.token_side == side) & trained).nonzero()[:, 0]
        if not len(places):
            continue
        count = min(POSITIONS, len(places))
        picked = places[torch.linspace(0, len(places) - 1, count).long()]
        alone = []
        for place in picked.tolist():
            change = update.along(example.gradient([place]))
            alone.append(example.moved_along([change])[0, place])
        at_picked = {rung: change[picked] for rung, change in predicted.items()}
        at_picked["own_token"] = torch.stack(alone)
        measured = (after - before)[picked]
        yield side, Pictures(batch.token[picked], before[picked], measured, at_picked)


@dataclass(frozen=True)
class _Example:
    """One example of a step, at the weights before it: its logits, and the objective's c."""

    policy: PolicyFunction
    objective: Objective
    update: FrozenUpdate
    before: dict[str, Tensor]
    batch: TokenBatch
    logits: Float[Tensor, "tokens vocabulary"]
    rates: Float[Tensor, "tokens ..."]

    @classmethod
    def of(
        cls, record: StepRecord, policy: PolicyFunction, update: FrozenUpdate, number: int
    ) -> _Example:
        objective = build_objective(record.facts.objective)
        batch, before = record_batch(record, policy, [number]), policy.cast(record.before)
        with torch.no_grad():
            logits = policy.logits(before, batch)
            rates = objective.token_weights(read_logps(objective, logits, batch), batch)
        return cls(policy, objective, update, before, batch, logits, rates)

    def moved_along(
        self, directions: Iterable[Weights]
    ) -> Float[Tensor, "directions tokens vocabulary"]:
        """First-order Δ log π of the whole vocabulary, at temperature 1, along changes."""
        plain = replace(self.batch, temperature=1.0)
        return self.policy.change_along(self.before, directions, plain, view=EVERY_TOKEN)

    def gradient(self, places: Sequence[int] | None = None) -> dict[str, Tensor]:
        """Gradient of the loss through all tokens, or through some."""
        leaves = {name: w.detach().requires_grad_() for name, w in self.before.items()}
        with torch.enable_grad():
            losses = self._losses(leaves)
            chosen = losses if places is None else losses[list(places)]
            gradients = torch.autograd.grad(
                chosen.sum(), list(leaves.values()), materialize_grads=True
            )
        return dict(zip(leaves, gradients, strict=True))

    def _losses(self, weights: Weights) -> Float[Tensor, "tokens targets"]:
        logps = objective_logps(self.policy, weights, self.batch, self.objective)
        return -(self.rates * logps).reshape(len(self.rates), -1)

    def moved_by_head(self, names: Mapping[str, str]) -> Float[Tensor, "tokens vocabulary"]:
        """First-order Δ log π by the head's own change, at fixed features.

        **Arguments:** `names`: of the head's parameters, `weight` and, if it has one, `bias`.
        """
        leaves = {name: self.before[name].detach().requires_grad_() for name in names.values()}

        def through_head_alone(features: Tensor, output: Tensor) -> Tensor:
            moved = {name: leaf - leaf.detach() for name, leaf in leaves.items()}
            return output.detach() + head_output(features.detach(), moved, names)

        with torch.enable_grad(), at_head(self.policy, through_head_alone):
            gradients = torch.autograd.grad(self._losses(self.before).sum(), list(leaves.values()))
        change = self.update.along(dict(zip(leaves, gradients, strict=True)))

        def logits(moving: Weights) -> Tensor:
            def add(features: Tensor, output: Tensor) -> Tensor:
                return output + head_output(features, moving, names)

            with at_head(self.policy, add):
                return self.policy.logits(self.before, self.batch)

        with torch.no_grad():
            zeros = {name: torch.zeros_like(part) for name, part in change.items()}
            moved: Tensor = jvp(logits, (zeros,), (change,))[1]
        return EVERY_TOKEN.changes(self.logits, moved)


def _embeds(policy: PolicyFunction) -> bool:
    """Whether the head's table is the embedding's, too."""
    embedding: nn.Module = policy.causal.get_input_embeddings()  # type: ignore[operator]
    return embedding.weight is head_module(policy.causal).weight


def _rows(
    record: StepRecord, training: str, side: int, answers: Sequence[Pictures]
) -> Iterator[dict[str, Any]]:
    """One side's rungs, over all tokens but each position's own."""
    label = torch.cat([answer.label for answer in answers])
    before = torch.cat([answer.before for answer in answers])
    measured = torch.cat([answer.measured for answer in answers])
    others = torch.ones_like(before, dtype=torch.bool).scatter_(1, label[:, None], False)
    rose = measured[others] > 0
    best = before.masked_fill(~others, -torch.inf).argmax(1, keepdim=True)
    mass = before.exp().gather(1, best)
    flow = float((mass * measured.gather(1, best).expm1()).mean())
    for rung in answers[0].predicted:
        forecast = torch.cat([answer.predicted[rung] for answer in answers])
        yield {
            "training": training,
            "step": record.facts.step,
            "side": SIDES[side],
            "rung": rung,
            "positions": len(label),
            "auc": float(auc(forecast[others].cpu().numpy(), rose.cpu().numpy())),
            "right": float(((forecast[others] > 0) == rose).double().mean()),
            "flow": float((mass * forecast.gather(1, best)).mean()),
            "flow_measured": flow,
        }
