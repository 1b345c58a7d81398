"""A loss on pairs of one's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dynolab.errors import ConfigError
from dynolab.functions import ALLOWED
from dynolab.likelihood.token_logps import token_logps
from dynolab.objectives import CustomConfig, DPOConfig, build_objective
from tests.objectives import losses
from tests.objectives.test_forces import batch_of, random_logits

HERE = losses.__name__


def test_its_value_and_force_are_those_of_the_function() -> None:
    config = CustomConfig(loss=f"{HERE}.margin", settings={"beta": 0.3})
    objective, batch = build_objective(config), batch_of(config)
    logps = token_logps(random_logits(batch), batch).detach().requires_grad_()
    dpo = build_objective(DPOConfig(beta=0.3))
    ratio = batch.sequence_sum(logps - batch.reference) / batch.sequence_length
    expected = dpo.loss(logps, batch) + 0.1 * batch.by_side(ratio)[1].mean()
    (slope,) = torch.autograd.grad(expected, logps)
    torch.testing.assert_close(objective.loss(logps, batch), expected)
    torch.testing.assert_close(objective.token_weights(logps, batch), -slope)


def test_a_loss_without_a_reference_reads_plain_log_probabilities() -> None:
    config = CustomConfig(loss=f"{HERE}.hinge", needs_reference=False)
    objective, batch = build_objective(config), batch_of(config)
    assert not objective.needs_reference
    logps = token_logps(random_logits(batch), batch)
    chosen, rejected = batch.by_side(batch.sequence_sum(logps))
    torch.testing.assert_close(objective.loss(logps, batch), F.relu(3 - chosen + rejected).mean())


def test_a_loss_may_be_flat_where_an_answer_is_the_likelier_one() -> None:
    build_objective(CustomConfig(loss=f"{HERE}.flat_where_wrong", needs_reference=False))


@pytest.mark.parametrize(
    "name", ["constant", "not_a_number", "one_number", "across_pairs", "text", "missing"]
)
def test_a_function_that_is_no_loss_of_a_pair_is_refused_before_training(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"objective\.loss = '{HERE}\.{name}'"):
        build_objective(CustomConfig(loss=f"{HERE}.{name}"))


def test_a_module_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "others")
    with pytest.raises(ConfigError, match=ALLOWED):
        build_objective(CustomConfig(loss=f"{HERE}.margin"))
