"""Entropy, KL, margin and a rule's reward as functionals: gradients, closure, bad input."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces import (
    MapFacts,
    PolicyFunction,
    force_map,
    split_step,
    step_forces,
    token_forces,
)
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.measured import Source, measured_means, vocabulary_logps
from dynolab.forces.ledger.measures import DivergenceFrom, entropy
from dynolab.forces.step.step_forces import StepMeasures, step_measures
from dynolab.objectives import build_objective
from dynolab.results.ledger import MEASURED
from dynolab.training.config import OptimizerConfig
from tests.forces.small_models import encoded, neox, pairs, probe, recorded, trained
from tests.forces.test_step_forces import Numbers


def watched(kind: str, number: int, sequence: Encoded) -> tuple[ProbeRow, Encoded]:
    row = ProbeRow(
        pair_id=f"pair-{number}",
        split="train",
        kind=kind,
        prompt="p",
        response=f"{kind} {number}",
        made_by="hand",
    )
    return row, sequence


ANSWERS = [
    answer
    for number, pair in enumerate(pairs(3))
    for answer in (
        watched("chosen", number, pair.chosen),
        watched("rejected", number, pair.rejected),
    )
]


def reward(prompt, completions, row):  # type: ignore[no-untyped-def]
    """By the answer's kind and number, so that all differ."""
    return [len(text) + int(text[-1]) for text in completions]


@pytest.fixture
def source() -> Source:
    """A reference with other weights."""
    reference = PolicyFunction(neox(seed=3), torch.float64)
    return Source(lambda answers: vocabulary_logps(reference, answers), reward)


def plain_value(kind: str, policy: PolicyFunction, at) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """The functional by torch's own distributions, answer by answer."""
    reference = PolicyFunction(neox(seed=3), torch.float64)
    chosen, rejected = ANSWERS[::2], ANSWERS[1::2]

    def logits(model, sequence, weights):  # type: ignore[no-untyped-def]
        return model.logits(weights, model.batch([sequence]))

    def logp(sequence):  # type: ignore[no-untyped-def]
        tokens = torch.tensor([sequence.ids[place] for place in sequence.positions])
        return Categorical(logits=logits(policy, sequence, at)).log_prob(tokens).sum()

    if kind in ("entropy", "kl"):
        values = []
        for _, sequence in chosen:
            here = Categorical(logits=logits(policy, sequence, at))
            there = Categorical(logits=logits(reference, sequence, {}).detach())
            values.append(here.entropy() if kind == "entropy" else kl_divergence(here, there))
        return torch.cat(values).mean()
    if kind == "margin":
        margins = [
            logp(of_chosen) - logp(of_rejected)
            for (_, of_chosen), (_, of_rejected) in zip(chosen, rejected, strict=True)
        ]
        return torch.stack(margins).mean()
    rewards = torch.tensor([float(reward("p", [row.response], row)[0]) for row, _ in ANSWERS])
    logps = torch.stack([logp(sequence) for _, sequence in ANSWERS])
    return ((rewards - rewards.mean()).double() * logps).mean()


MEASURABLE = [kind for kind in MEASURED if kind != "contrast"]  # which is a margin of other kinds


@pytest.mark.parametrize("kind", MEASURABLE)
def test_values_and_gradients_are_those_of_torch_s_distributions(policy, source, kind) -> None:
    ((row, functional),) = measured_means([kind], ANSWERS, source, "kinds")
    assert (row.kind, row.pairs) == (kind, ("pair-0", "pair-1", "pair-2"))
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    truth = plain_value(kind, policy, leaves)
    pulls = torch.autograd.grad(truth, list(leaves.values()), materialize_grads=True)
    gradients = GroupedGradients.build(policy, policy.weights, [encoded(0), encoded(1)])
    # With another functional, so that a batch holds several measures.
    other = measured_means(["margin", "entropy"], ANSWERS, source, "kinds")
    slopes = slopes_of([functional, *(q for _, q in other)], gradients, policy.weights)
    assert slopes.values[0].item() == pytest.approx(truth.item(), rel=1e-10)
    expected = flatten(dict(zip(leaves, pulls, strict=True)))
    assert (slopes.gradients[0] - expected).norm() < 1e-9 * expected.norm()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_lines_and_what_is_left_are_the_whole_change(policy, source, optimizer) -> None:
    settings = OptimizerConfig(name=optimizer, learning_rate=1e-3, weight_decay=0.1)
    records = trained(settings)
    functionals = [q for _, q in measured_means(MEASURABLE, ANSWERS, source, "kinds")]
    ledger = Ledger(policy, functionals)
    steps = [ledger.enter(record) for record in reversed(records)][::-1]
    path = sum(step.measured.abs() for step in steps)
    explained = sum(
        step.lines.sum(0) + step.together + step.decay + step.rounding for step in steps
    )
    explained += steps[0].carried_in
    residual = sum(step.residual for step in steps)
    whole = steps[-1].after - steps[0].before
    assert ((explained + residual - whole).abs() / path).max() < 1e-12
    assert (residual.abs() / path).max() < 0.05  # first order reaches far
    assert path.min() > 0


def both_measures(source: Source) -> StepMeasures:
    measures = step_measures(("entropy", "kl"), source.reference)
    assert measures is not None
    return measures


@pytest.mark.parametrize("batch_tokens", [1, 4096])
def test_a_step_takes_measures_apart_as_it_does_log_probabilities(
    policy, source, batch_tokens
) -> None:
    momentum = OptimizerConfig(name="sgd", learning_rate=1e-3, momentum=0.9)
    record = recorded(neox(), momentum, count=3)
    answers = [probe("pair-0", "chosen", "5 6 7", " 8 9"), probe("p", "rejected", "5 6", " 8")]
    encoder, reference = Encoder(Numbers(), 32, "drop"), PolicyFunction(neox(seed=3), torch.float64)
    rows = step_forces(
        record,
        policy,
        answers,
        encoder,
        stage="dpo",
        batch_tokens=batch_tokens,
        measures=both_measures(source),
    ).rows
    assert [row.kind for row in rows] == ["chosen", "argmax", "entropy", "kl", "rejected"]
    sequence = encoder.probe(answers[0])
    for row in rows[2:4]:
        values = []
        for weights in (record.before, record.after):
            here = Categorical(logits=policy.logits(weights, policy.batch([sequence])).detach())
            there = Categorical(logits=reference.logits({}, reference.batch([sequence])).detach())
            of_kind = here.entropy() if row.kind == "entropy" else kl_divergence(here, there)
            values.append(float(of_kind.sum()))
        assert row.measured == pytest.approx(values[1] - values[0], abs=1e-12)
        parts = row.from_chosen + row.from_rejected + row.from_together + row.from_history
        assert row.predicted == pytest.approx(parts, rel=1e-6)
        assert abs(row.residual) < 1e-2 * abs(row.measured)


def test_steps_refuse_measures_without_a_slope_of_their_own(source) -> None:
    for kinds, reference in ((("margin",), source.reference), (("kl",), None)):
        with pytest.raises(ConfigError, match=f"measures = {kinds[0]!r}"):
            step_measures(kinds, reference)


def test_maps_of_measures_are_their_changes_token_by_token(policy, source) -> None:
    record = recorded(neox(), count=2).as_gradient_step()
    observed = [encoded(70, response=4), encoded(71, response=3)]
    measures = [entropy, DivergenceFrom(next(iter(source.reference(observed[1:]))))]
    update = split_step(record, policy).update
    objective = build_objective(record.facts.objective)
    made = force_map(
        policy,
        observed,
        record.examples,
        objective,
        update=update,
        at=record.before,
        measures=measures,
    )
    assert made.facts.units != MapFacts.units
    direction = split_step(record, policy).parts()
    change = {
        n: direction["from_chosen"][n] + direction["from_rejected"][n] for n in policy.weights
    }
    for place, (sequence, measure) in enumerate(zip(observed, measures, strict=True)):
        batch = policy.batch([sequence])
        expected = policy.derivatives(
            lambda w, batch=batch, measure=measure: measure(policy.logits(w, batch), batch.token),
            record.before,
            [change],
        )[0]
        rows = slice(made.observed_offsets[place], made.observed_offsets[place + 1])
        assert torch.allclose(torch.tensor(made.force[rows]).sum(1), expected, rtol=1e-9)
        by_token = [
            token_forces(record, policy, update, n, sequence, at=record.before, measure=measure)
            for n in range(2)
        ]
        assert torch.allclose(sum(force.sum(1) for force in by_token), expected, rtol=1e-9)


def test_what_cannot_be_measured_is_refused_by_name(source) -> None:
    def refused(kind, answers=ANSWERS, source=source):  # type: ignore[no-untyped-def]
        with pytest.raises(ConfigError) as error:
            measured_means([kind], answers, source, "kinds")
        return error.value.field, error.value.value

    assert refused("kl", source=Source()) == ("kinds", "kl")
    assert refused("reward", source=Source()) == ("kinds", "reward")
    assert refused("reward", source=Source(reward=lambda *_: [2.0])) == ("kinds", 2.0)
    assert refused("margin", ANSWERS[::2]) == ("kinds", "margin")
    assert refused("entropy", ANSWERS[1::2]) == ("kinds", "entropy")
    assert refused("entropy", []) == ("kinds", "entropy")
