"""The papers' measures of a step, from records walked backwards."""

from __future__ import annotations

import pytest

from dynolab.forces import measured_change, paper_influence, response_terms, step_terms
from dynolab.forces.ledger.sources import SourceAccounts
from tests.forces.small_models import encoded
from tests.forces.test_ledger import OPTIMIZERS, trained


def test_every_step_is_measured_as_the_papers_do(policy):
    records = trained(OPTIMIZERS["sgd momentum"], steps=3)
    answers = [encoded(71), encoded(72, response=3)]
    accounts = SourceAccounts(policy, [("a", answers[0]), ("b", answers[1])])
    measured = [accounts.enter(record) for record in reversed(records)][::-1]
    for record, step in zip(records, measured, strict=True):
        assert [(each.step, each.functional) for each in step] == [
            (record.facts.step, "a"),
            (record.facts.step, "b"),
        ]
        observed = response_terms(policy, answers, at=record.before)
        updating = [response.terms for response in step_terms(record, policy)]
        for each, answer, terms in zip(step, answers, observed, strict=True):
            batch, _ = policy.batch([answer])
            change = measured_change(policy, record.before, record.after, batch)
            truth = paper_influence(change, terms, updating)
            assert (each.lbk, each.sign_delta) == pytest.approx(truth, rel=1e-6)
            assert each.kernel_bound > 0


def test_without_single_answers_nothing_is_measured(policy):
    (record,) = trained(OPTIMIZERS["sgd"], steps=1)
    assert SourceAccounts(policy, []).enter(record) == []
