"""From the record of a step to forces on every watched answer, and how far first order carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch, by_length
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import NamedTensors, Weights
from dynolab.forces.ledger.measured import ReferenceLogps
from dynolab.forces.ledger.measures import DivergenceFrom, Measure, MeasuredView, entropy
from dynolab.forces.step.one_step import change_of, midpoint, second_order
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import PARTS, replay_error, rounding_floor, split_step
from dynolab.grouping import grouped
from dynolab.results.forces import UNEXPLAINED, Falls, Validity
from dynolab.results.study import ARGMAX, ForceRow, ReplayFacts
from dynolab.training.step_record import StepRecord

StepMeasures = Callable[[Sequence[Encoded]], Mapping[str, Measure]]
"""Measures by kind, for the tokens of some answers one after the other."""


def step_measures(
    kinds: Collection[str], reference: ReferenceLogps | None = None
) -> StepMeasures | None:
    """The measures of kinds `entropy` and `kl`; None without any.

    **Arguments:** `reference`: what KL is measured from.

    **Raises:** `ConfigError` for another kind, and for `kl` without a reference.
    """
    for kind in kinds:
        if kind not in ("entropy", "kl"):
            raise ConfigError(
                "measures", kind, "a step measures entropy and kl; a ledger, the others"
            )
    if "kl" in kinds and reference is None:
        raise ConfigError("measures", "kl", "there is no reference model to measure it from")

    def of_answers(answers: Sequence[Encoded]) -> dict[str, Measure]:
        measures: dict[str, Measure] = {}
        if "entropy" in kinds:
            measures["entropy"] = entropy
        if "kl" in kinds and reference is not None:
            measures["kl"] = DivergenceFrom(torch.cat(list(reference(answers))))
        return measures

    return of_answers if kinds else None


@dataclass(frozen=True)
class Watched:
    """A batch of answers; y* of each chosen one is a further answer on the same sequence.

    So is what is measured there. Answer a is of kind `kind[a]` and belongs to row `row[a]`; rows
    `chosen` are chosen answers. `view` holds the realised token, y* and the measures of every
    position, `start` their values before the step.
    """

    batch: TokenBatch
    view: View
    row: list[int]
    kind: list[str]
    chosen: list[int]
    start: Float[Tensor, "tokens k"]

    def change(self, policy: PolicyFunction, weights: Weights) -> Float[Tensor, "tokens k"]:
        """What is observed at some weights, minus `start`."""
        after = policy.observed(weights, self.batch, self.view, forward_mode=False)
        return after - self.start

    def sums(self, values: Float[Tensor, "tokens k"]) -> Float[Tensor, " answers"]:
        """Each answer's sum of a value of the view's tokens."""
        realised, *others = (
            self.batch.sequence_sum(column) for column in values.double().unbind(1)
        )
        return torch.cat([realised, *(column[self.chosen] for column in others)])


def encode_probes(probes: Sequence[ProbeRow], encoder: Encoder) -> list[tuple[ProbeRow, Encoded]]:
    """Encodes the rows; leaves out those that the encoder's overlong rule drops.

    The encoder's counts do not change. **Raises** `ConfigError` if no row is left.
    """
    probe_encoder = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
    encoded = zip(probes, probe_encoder.probes(probes), strict=True)
    answers = [(row, answer) for row, answer in encoded if answer is not None]
    if not answers:
        raise ConfigError("probes", 0, "no probe row is left to watch; give rows that fit")
    return answers


@torch.no_grad()
def watch(
    rows: Sequence[tuple[ProbeRow, Encoded]],
    before: Weights,
    policy: PolicyFunction,
    measures: StepMeasures | None = None,
) -> Watched:
    """The batch of some rows, their log π and their argmax tokens at the weights before a step.

    **Arguments:** `measures`: what else is observed at the chosen answers.
    """
    sequences = [answer for _, answer in rows]
    batch = policy.batch(sequences)
    logits = policy.logits(policy.cast(before), batch, forward_mode=False)
    view = View.realised(batch).beside(View.argmax(logits))
    kinds = [probe.kind for probe, _ in rows]
    chosen = [number for number, kind in enumerate(kinds) if kind == "chosen"]
    beside_chosen = [ARGMAX]
    if measures is not None:
        of_batch = measures(sequences)
        view = MeasuredView(view.tokens, tuple(of_batch.values()))
        beside_chosen += of_batch
    return Watched(
        batch=batch,
        view=view,
        row=[*range(len(rows)), *chosen * len(beside_chosen)],
        kind=[*kinds, *(kind for kind in beside_chosen for _ in chosen)],
        chosen=chosen,
        start=view.logps(logits),
    )


@dataclass(frozen=True)
class StepForces:
    """All forces of one recorded step, and how well it was replayed.

    `update`, `gradient`: the step's frozen map and the gradient of its loss, on the host.
    """

    rows: list[ForceRow]
    replay: ReplayFacts
    update: FrozenUpdate
    gradient: NamedTensors


def step_forces(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int | None = None,
    measures: StepMeasures | None = None,
) -> StepForces:
    """Measures and predicts what a recorded step did to every probe row.

    Derivatives are taken at the midpoint of the step. A `chosen` row is followed by a row of
    kind `argmax`: the tokens that the model before the step found likeliest at every position of
    the teacher-forced chosen answer, held fixed; and by one of each measure, summed over its
    tokens.

    **Arguments:**

    - `encoder`: encodes the rows; rows that its overlong rule drops get no force row, and its
      counts do not change.
    - `batch_tokens`: bound on sequences × padded length of one forward, beside which up to four
      derivatives run; default: the policy's.
    - `measures`: what else is observed at the chosen answers (`step_measures`).

    **Raises:** `ConfigError` if the overlong rule drops every probe row.
    """
    answers = encode_probes(probes, encoder)
    tokens = batch_tokens or policy.batch_tokens
    split = split_step(record, policy, batch_tokens=tokens)
    error = replay_error(split, record)
    update = FrozenUpdate({name: scale.cpu() for name, scale in split.update.scale.items()})
    gradient = {name: total.cpu() for name, total in split.gradient.items()}
    directions: dict[str, Weights] = {"predicted": change_of(record.before, record.after)}
    for name, part in split.parts().items():
        if any(bool(w.any()) for w in part.values()):
            directions[name] = {parameter: w.cpu() for parameter, w in part.items()}
    del split

    groups = list(by_length([answer for _, answer in answers], tokens))
    before = policy.cast(record.before)
    batches = []
    for members in groups:
        batches.append(watch([answers[member] for member in members], before, policy, measures))
    del before
    rows: list[list[ForceRow]] = [[] for _ in answers]
    trained = {example.id for example in record.examples}
    observed = _observe(batches, record, directions, policy)
    for members, watched, sums in zip(groups, batches, observed, strict=True):
        for index, (number, kind) in enumerate(zip(watched.row, watched.kind, strict=True)):
            values = {name: float(total[index]) for name, total in sums.items()}
            member = members[number]
            probe, encoded = answers[member]
            row = ForceRow(
                stage=stage,
                step=record.facts.step,
                pair_id=probe.pair_id,
                split=probe.split,
                kind=kind,
                tokens=encoded.response_length,
                in_batch=probe.pair_id in trained,
                residual=values["measured"] - values["predicted"],
                **values,
            )
            rows[member].append(row)
    flat = list(chain.from_iterable(rows))
    gap = [sum(getattr(row, part) for part in PARTS) - row.predicted for row in flat]
    facts = record.facts
    replay = ReplayFacts(
        stage=stage,
        step=facts.step,
        learning_rate=facts.learning_rate,
        clip_factor=facts.clip_factor,
        grad_norm=facts.grad_norm,
        replay_error=error,
        rounding_floor=rounding_floor(record),
        closure_error=math.hypot(*gap) / math.hypot(*(row.predicted for row in flat)),
    )
    return StepForces(flat, replay, update, gradient)


def force_metrics(rows: Sequence[ForceRow]) -> dict[str, float]:
    """`force/<kind>/<part>`: means over the training pairs' answers, in nats per step."""
    groups = grouped((row.kind, row) for row in rows if row.split == "train")
    means = {}
    for kind, members in groups.items():
        for part in ("measured", "predicted", "residual", *PARTS):
            total = math.fsum(getattr(row, part) for row in members)
            means[f"force/{kind}/{part}"] = total / len(members)
    return means


@torch.no_grad()
def _observe(
    batches: Sequence[Watched],
    record: StepRecord,
    directions: Mapping[str, Weights],
    policy: PolicyFunction,
) -> list[dict[str, Float[Tensor, " answers"]]]:
    """Measured change, and first order along every direction, of each answer of each batch.

    Weights and directions are on the policy's device in turn, each once.
    """
    after = policy.cast(record.after)
    changes = [{"measured": watched.change(policy, after)} for watched in batches]
    del after
    place = policy.cast(midpoint(record.before, record.after))
    names = list(directions)
    together = policy.tangents_together
    for start in range(0, len(names), together):
        some = names[start : start + together]
        moving = [policy.cast(directions[name]) for name in some]
        for values, watched in zip(changes, batches, strict=True):
            along = policy.change_along(place, moving, watched.batch, view=watched.view)
            values |= dict(zip(some, along, strict=True))
        del moving  # before the next are moved
    sums = []
    for values, watched in zip(changes, batches, strict=True):
        parts = dict.fromkeys(PARTS, torch.zeros_like(values["measured"]))
        sums.append({name: watched.sums(change) for name, change in (parts | values).items()})
    return sums


_MULTIPLES = tuple(2.0 ** (power / 2) for power in range(-8, 41))
"""Multiples of a step at which the unexplained share is predicted."""

_AROUND = range(-6, 7, 2)
"""Places in `_MULTIPLES`, from the predicted radius, at which the share is measured."""


class Start(NamedTuple):
    """A step, and the weights before it."""

    step: int
    weights: Weights


@torch.no_grad()
def step_validity(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int | None = None,
    since: Start | None = None,
) -> Validity:
    """The radius of validity of first order around a recorded step, or of all steps up to it.

    A step at s times its learning rate changes the weights by s·d, d the realised change; that
    holds for every optimizer here, weight decay and momentum included. First order at the weights
    before the change leaves unexplained `u(s) = Σ(Δ(s) − s·first)² / Σ Δ(s)²` over the watched
    answers, and its radius ends where `u = UNEXPLAINED`: predicted with Δ(s) from logits to second
    order (`SecondOrder.change`), and measured with Δ(s) from forwards.

    **Arguments:** as of `step_forces`, and `since`: an earlier step, from whose weights the change
    starts. Its radius is in units of the whole change, whose direction a training at another rate
    takes only roughly.

    **Raises:** `ConfigError` for a model whose second derivatives are not those of its forward.
    """
    answers = encode_probes(probes, encoder)
    start = record.before if since is None else since.weights
    change = change_of(start, record.after)
    tokens = batch_tokens or policy.batch_tokens
    batches = [
        watch([answers[member] for member in members], start, policy)
        for members in by_length([answer for _, answer in answers], tokens)
    ]
    firsts: list[Float[Tensor, " answers"]] = []
    straight: list[Float[Tensor, " answers"]] = []
    bent: list[Float[Tensor, "multiples answers"]] = []
    of_softmax = square = 0.0
    for watched in batches:
        batch, view = watched.batch, watched.view
        orders = second_order(policy, start, change, batch, view)
        firsts.append(watched.sums(orders.first))
        straight.append(watched.sums(orders.with_straight_logits))
        bent.append(torch.stack([watched.sums(orders.change(s)) for s in _MULTIPLES]))
        softmax = watched.sums(orders.softmax)
        second = watched.sums(orders.jacobian) + softmax
        of_softmax += float((softmax * second).sum())
        square += float(second.square().sum())
    first, predicted = torch.cat(firsts), torch.cat(bent, dim=1)

    def changes_at(multiple: float) -> Float[Tensor, " answers"]:
        moved = {name: torch.lerp(w, record.after[name], multiple) for name, w in start.items()}
        place = policy.cast(moved)
        return torch.cat([watched.sums(watched.change(policy, place)) for watched in batches])

    def measured(multiple: float) -> float:
        return _unexplained(changes_at(multiple), multiple * first)

    shares = []
    for multiple, moved in zip(_MULTIPLES, predicted, strict=True):
        shares.append(_unexplained(moved, multiple * first))
    radius = crossing(_MULTIPLES, shares)
    # Measured around the predicted radius, which is nearest in logarithms.
    middle = 1.0 if math.isnan(radius) else radius
    distances = [abs(math.log(multiple / middle)) for multiple in _MULTIPLES]
    nearest = distances.index(min(distances))
    share_at = {}
    for offset in _AROUND:
        if 0 <= nearest + offset < len(_MULTIPLES):
            multiple = _MULTIPLES[nearest + offset]
            share_at[multiple] = measured(multiple)
    realised = changes_at(1.0)
    kinds = [kind for watched in batches for kind in watched.kind]
    return Validity(
        stage=stage,
        step=record.facts.step,
        since=None if since is None else since.step,
        learning_rate=record.facts.learning_rate,
        answers=len(first),
        bound=UNEXPLAINED,
        unexplained=_unexplained(realised, first),
        predicted=radius,
        measured=crossing(list(share_at), list(share_at.values())),
        softmax=of_softmax / square if square else math.nan,
        falls=_falls(kinds, realised, first, torch.cat(straight)),
    )


def _falls(
    kinds: Sequence[str],
    measured: Float[Tensor, " answers"],
    first: Float[Tensor, " answers"],
    straight: Float[Tensor, " answers"],
) -> Falls | None:
    """Means over the chosen answers that fell; None where none did."""
    chosen = torch.tensor([kind == "chosen" for kind in kinds], device=measured.device)
    fell = chosen & (measured < 0)
    if not bool(fell.any()):
        return None
    means = [float(changes[fell].mean()) for changes in (measured, first, straight)]
    return Falls(answers=int(fell.sum()), measured=means[0], first=means[1], softmax=means[2])


def _unexplained(change: Float[Tensor, " answers"], first: Float[Tensor, " answers"]) -> float:
    """`1 − R²` of first order."""
    return float((change - first).square().sum() / change.square().sum())


def crossing(
    multiples: Sequence[float], shares: Sequence[float], bound: float = UNEXPLAINED
) -> float:
    """The multiple where a share first exceeds the bound, by interpolation in logarithms.

    NaN where all shares lie on one side.
    """
    for (low, below), (high, above) in pairwise(zip(multiples, shares, strict=True)):
        if below <= bound < above:
            start, stop = math.log(max(below, 1e-30)), math.log(above)
            way = (math.log(bound) - start) / (stop - start)
            return low * (high / low) ** way
    return math.nan
