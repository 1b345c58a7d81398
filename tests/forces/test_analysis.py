"""A checkpoint's forces in one go, against plain sums over its force map and plain softmaxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.forces import (
    PolicyFunction,
    breakdown,
    force_map,
    one_step,
    response_terms,
    split_step,
)
from dynolab.forces.map.analysis import (
    Analysis,
    Question,
    analyse,
    recorded_examples,
)
from dynolab.forces.map.breakdown import pair_totals
from dynolab.forces.map.job import MapJob, fill_map
from dynolab.forces.map.terms import updating_terms
from dynolab.objectives import DPOConfig, GRPOConfig, build_objective
from tests.forces import small_models
from tests.forces.families import case
from tests.forces.lora import adapted
from tests.forces.small_models import (
    Letters,
    encoded,
    neox,
    pairs,
    probe,
    read,
    with_reference,
)

BETA, RATE = 0.5, 0.3
OBSERVED = [
    (kind, pair, split, encoded(seed, 4, length))
    for kind, pair, split, seed, length in (
        ("chosen", "pair-0", "train", 1, 3),
        ("chosen", "pair-1", "train", 2, 2),
        ("rejected", "pair-1", "train", 3, 4),
        ("chosen", "pair-9", "heldout", 4, 2),
    )
]


@pytest.fixture(scope="module")
def question() -> Question:
    model = neox()
    observed = [
        (probe(pair, kind).model_copy(update={"split": split}), sequence)
        for kind, pair, split, sequence in OBSERVED
    ]
    return Question(
        PolicyFunction(model, torch.float64),
        Letters(),
        observed,
        with_reference(model, pairs(2)),
        DPOConfig(beta=BETA),
        RATE,
        RATE,
        left_out=7,
    )


@pytest.fixture
def answer(question: Question, tmp_path: Path) -> Analysis:
    return analyse(question, tmp_path / "map")


def test_totals_are_sums_of_the_map_by_answer_pair_and_side(
    question: Question, answer: Analysis
) -> None:
    objective = build_objective(question.objective)
    sequences = [sequence for _, sequence in question.observed]
    asked = question.policy, sequences, question.updating, objective
    whole, parts = force_map(*asked, update=RATE), breakdown(*asked, update=RATE)
    np.testing.assert_allclose(answer.force_map.force, whole.force, rtol=1e-6)
    sums = pair_totals(whole)
    head = pair_totals(replace(whole, force=parts.head.numpy()))
    rows = iter(answer.totals)
    for number, (watched, sequence) in enumerate(question.observed):
        for pair, example in enumerate(question.updating):
            row = next(rows)
            assert (row.observed_id, row.split, row.kind, row.tokens, row.updating_id) == (
                *(watched.pair_id, watched.split, watched.kind),
                *(sequence.response_length, example.id),
            )
            sides = sums.from_chosen[number, pair], sums.from_rejected[number, pair]
            assert (row.from_chosen, row.from_rejected) == pytest.approx(sides, rel=1e-5)
            of_head = head.from_chosen[number, pair] + head.from_rejected[number, pair]
            assert row.from_head == pytest.approx(of_head, rel=1e-6)
    assert next(rows, None) is None


def test_metrics_are_means_over_the_training_pairs_answers(answer: Analysis) -> None:
    found = answer.metrics()
    for kind, ids in (("chosen", ("pair-0", "pair-1")), ("rejected", ("pair-1",))):
        for part in ("from_chosen", "from_rejected"):
            values = [
                getattr(row, part)
                for row in answer.totals
                if row.split == "train" and row.kind == kind
            ]
            assert len(values) == 2 * len(ids)
            assert found[f"force/{kind}/{part}"] == pytest.approx(sum(values) / len(ids))
        assert found[f"force/{kind}/predicted"] == pytest.approx(
            found[f"force/{kind}/from_chosen"] + found[f"force/{kind}/from_rejected"]
        )
    for part in answer.facts.blocks:
        assert found[f"force/block/{part.block}/share"] == part.share
        assert found[f"force/block/{part.block}/projection"] == part.projection
    fit = answer.facts.last_layer
    assert found["force/last_layer/cosine"] == fit.cosine
    assert found["force/sum_error"] == answer.facts.sum_error
    kinds = {name.split("/")[1] for name in found}
    assert kinds == {"chosen", "rejected", "block", "last_layer", "sum_error"}
    unmoved = replace(
        answer,
        facts=answer.facts.model_copy(
            update={"last_layer": fit.model_copy(update={"cosine": float("nan")})}
        ),
    )
    assert set(found) - set(unmoved.metrics()) == {"force/last_layer/cosine"}


def test_terms_are_those_of_both_sides_responses(question: Question, answer: Analysis) -> None:
    policy, objective = question.policy, build_objective(question.objective)
    observed = response_terms(policy, [sequence for _, sequence in question.observed])
    expected = [
        ("observed", probe.pair_id, probe.kind, read(sequence), terms)
        for (probe, sequence), terms in zip(question.observed, observed, strict=True)
    ]
    expected += [
        ("updating", own.updating.id, own.updating.side, list(map("t{}".format, tokens)), own.terms)
        for own in updating_terms(policy, question.updating, objective, at={})
        for tokens in (own.updating.tokens,)
    ]
    for row, (role, name, kind, tokens, terms) in zip(answer.terms, expected, strict=True):
        assert (row.role, row.id, row.kind, row.tokens) == (role, name, kind, tokens)
        assert row.logp == pytest.approx(terms.logp.tolist())
        assert row.a_norm == pytest.approx(terms.a_frobenius.tolist())
        assert row.energy == pytest.approx(terms.energy.tolist())
        assert row.force_size == pytest.approx(terms.force_size.tolist())
        assert row.learning_rate == pytest.approx(terms.learning_rate.tolist())
        assert row.g_norm == pytest.approx(terms.g_norm.tolist())


def test_facts_say_what_was_asked_and_how_it_was_computed(
    question: Question, answer: Analysis
) -> None:
    facts, whole = answer.facts, np.array(answer.force_map.force)
    assert (facts.objective, facts.objective_settings["beta"]) == ("dpo", BETA)
    assert "name" not in facts.objective_settings
    assert (facts.learning_rate, facts.step, facts.left_out) == (RATE, None, 7)
    assert facts.dtype == "float64"
    assert (facts.observed_answers, facts.observed_tokens) == (4, 11)
    assert (facts.updating_pairs, facts.updating_tokens) == (2, whole.shape[1])
    assert not facts.grouped and not facts.adapters
    shares = [part.share for part in facts.blocks]
    assert shares == sorted(shares, reverse=True)
    assert sum(part.projection for part in facts.blocks) == pytest.approx(1)
    assert 0 <= facts.sum_error < 1e-6
    sequences = [sequence for _, sequence in question.observed]
    parts = breakdown(
        question.policy,
        sequences,
        question.updating,
        build_objective(question.objective),
        update=RATE,
    )
    fit = parts.last_layer()
    assert facts.last_layer.model_dump() == pytest.approx(vars(fit))
    assert {part.block: part.share for part in facts.blocks} == pytest.approx(parts.shares())


def test_a_step_s_question_is_asked_at_its_weights_and_by_its_update(
    question: Question, tmp_path: Path
) -> None:
    """The same map as a rank makes of its job's file."""
    record = small_models.recorded(neox())
    update = split_step(record, question.policy).update
    asked = question.in_metric_of(record, update)
    assert (asked.step, asked.learning_rate) == (record.facts.step, record.facts.learning_rate)
    sequences = [sequence for _, sequence in question.observed]
    expected = force_map(
        question.policy,
        sequences,
        question.updating,
        build_objective(question.objective),
        update=update,
        at=record.before,
    )
    answer = analyse(asked, tmp_path / "own")
    np.testing.assert_allclose(answer.force_map.force, expected.force, rtol=1e-6)
    assert answer.facts.step == record.facts.step
    assert answer.facts.sum_error < 1e-6  # the parts, too, are taken at the step's weights
    batch = question.policy.batch(sequences)
    change = one_step(question.policy, record.before, record.after, batch, at=record.before)
    measured, left = map(batch.sequence_sum, (change.measured, change.residual))
    share = float(left.square().sum() / measured.square().sum())
    assert answer.facts.unexplained == pytest.approx(share)
    assert analyse(question, tmp_path / "plain").facts.unexplained is None
    for asking, name in ((asked, "step"), (question, "gradient")):
        job = MapJob.of(
            asking,
            model=tmp_path,
            adapter=None,
            tensors=tmp_path / f"{name}.safetensors",
            folder=tmp_path / name,
            memory_bytes=2**24,
        )
        assert (job.tensors is None) == (name == "gradient")
        assert (job.model, job.adapter, job.memory_bytes) == (tmp_path, None, 2**24)
        filled = fill_map(MapJob.model_validate_json(job.model_dump_json()), question.policy)
        own = answer if asking is asked else analyse(question, tmp_path / "plain")
        np.testing.assert_allclose(filled.force, own.force_map.force, rtol=1e-6)
        assert filled.updating == own.force_map.updating
        assert (tmp_path / name / "manifest.json").exists()


def test_last_layers_are_told_with_what_they_leave_out(question: Question, tmp_path: Path) -> None:
    answer = analyse(replace(question, last_layers=1), tmp_path / "last")
    facts, whole = answer.facts, analyse(question, tmp_path / "whole")
    assert (facts.last_layers, facts.adapters) == (1, False)
    assert facts.sum_error is not None and facts.sum_error < 1e-9
    sums = [one.force_map.force.sum(1) for one in (answer, whole)]
    expected = np.linalg.norm(sums[0] - sums[1]) / np.linalg.norm(sums[1])
    assert facts.outside == pytest.approx(expected) and expected > 0.1
    assert (whole.facts.last_layers, whole.facts.outside) == (None, None)
    assert answer.metrics()["force/outside"] == facts.outside


def test_facts_tell_of_adapters_and_of_groups(question: Question, tmp_path: Path) -> None:
    model = adapted("llama_tied").eval()
    policy, examples = PolicyFunction(model, torch.float64), with_reference(model, pairs(2))
    asked = replace(question, policy=policy, updating=examples)
    assert analyse(asked, tmp_path / "adapters").facts.adapters
    here, objective = case("gpt_neox"), GRPOConfig()
    groups = here.updating(build_objective(objective))
    asked = replace(question, policy=here.policy, updating=groups, objective=objective)
    facts = analyse(asked, tmp_path / "groups").facts
    assert facts.grouped
    assert (facts.objective, facts.updating_pairs) == ("grpo", len(groups))
    assert facts.objective_settings == objective.model_dump(exclude={"name"})


def test_examples_are_recorded_with_the_references_that_there_are() -> None:
    examples = [pair.encoded() for pair in pairs(2)]
    scores = {"pair-0": {0: torch.tensor([1.0, 2.0]), 1: torch.tensor([3.0])}, "pair-1": {}}
    first, second = recorded_examples(examples, scores)
    assert (first.id, first.chosen, first.rejected) == (
        "pair-0",
        examples[0].chosen,
        examples[0].rejected,
    )
    assert (first.chosen_reference, first.rejected_reference) == ([1.0, 2.0], [3.0])
    assert (second.chosen_reference, second.rejected_reference) == (None, None)
    assert [one.chosen_reference for one in recorded_examples(examples)] == [None, None]
