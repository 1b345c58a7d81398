"""SAM on the output layer, against autograd on a model whose layer is really moved."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import build_objective
from dynolab.training.engine import PlainEngine
from dynolab.training.examples import Offline
from dynolab.training.sharpness import output_layer
from dynolab.training.step_batch import collate_step, count_step
from dynolab.training.step_passes import StepPasses
from models.language import load_language_model, load_tokenizer
from tests.training.small import make_job, settings

RHO = 0.3


class OneStep:
    """A step's examples and its passes in float64."""

    def __init__(self, inputs: Path, tmp_path: Path, **changes: Any) -> None:
        objective = {"name": "dpo", "logits_sam": RHO}
        config = settings(
            objective=objective, optimizer={"name": "sgd"}, record_steps=[], **changes
        )
        job = make_job(inputs, tmp_path, config)
        self.logits = ResponseLogits(load_language_model(job.model).double().eval())
        self.objective = build_objective(config.objective)
        rows = Encoder(load_tokenizer(job.model), 48, "error").examples(
            read_rows(job.examples, Example)
        )
        source = Offline(rows, self.objective, job, 0)
        source.begin(self.logits)
        self.engine = PlainEngine(self.logits, config)
        self.examples = list(source.draw(self.engine, 0).examples)
        self.totals = count_step(self.examples, self.objective.sides)
        self.passes = StepPasses(config, self.objective, None, temperature=1.0, pad_id=0)

    def accumulated(self) -> dict[str, Tensor]:
        """The gradient that the step's passes leave."""
        self.logits.zero_grad()
        self.passes.accumulate(self.engine, 0, self.examples, self.totals)
        return {
            name: p.grad.clone() for name, p in self.logits.named_parameters() if p.grad is not None
        }

    def by_autograd(self, logits: ResponseLogits) -> dict[str, Tensor]:
        batch = collate_step(self.examples, self.objective, self.totals, 0)
        loss = self.objective.loss(logits(batch, token_logps), batch)
        names, weights = zip(*logits.named_parameters(), strict=True)
        return dict(
            zip(names, torch.autograd.grad(loss, weights, materialize_grads=True), strict=True)
        )

    def untied(self) -> ResponseLogits:
        """A copy whose output layer is a matrix of its own."""
        copy = deepcopy(self.logits)
        layer = output_layer(copy.model)
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        return copy


def layer_name(logits: ResponseLogits) -> str:
    weight = output_layer(logits.model).weight
    return next(name for name, p in logits.named_parameters() if p is weight)


@pytest.mark.parametrize("micro", [2, 8])
def test_the_gradient_is_that_beside_the_output_layer(
    inputs: Path, tmp_path: Path, micro: int
) -> None:
    step = OneStep(inputs, tmp_path, micro_batch_size=micro)
    moved = step.untied()
    name, layer = layer_name(moved), output_layer(moved.model)
    by_layer = step.by_autograd(moved)[name]
    with torch.no_grad():
        layer.weight += RHO * by_layer / by_layer.norm()
    expected, accumulated = step.by_autograd(moved), step.accumulated()
    tied = layer_name(step.logits)
    for weight, gradient in accumulated.items():
        truth = expected[weight]
        if weight == tied != name:  # one matrix for inputs, too, adds up both gradients
            truth = truth + expected[name]
        torch.testing.assert_close(gradient, truth, rtol=1e-9, atol=1e-12)
    plain = step.by_autograd(step.logits)
    assert any(
        not torch.allclose(accumulated[weight], plain[weight], rtol=1e-3) for weight in accumulated
    )
    assert not output_layer(step.logits.model)._forward_hooks


def test_what_it_cannot_be_combined_with_is_refused() -> None:
    objective = {"name": "dpo", "logits_sam": RHO}
    for changes in (
        {"objective": objective, "record_steps": [1]},
        {"objective": objective | {"calibrated": True}},
        {"objective": objective | {"logits_sam": 0}},
    ):
        with pytest.raises((ConfigError, ValueError), match="logits_sam"):
            settings(**changes)
    with pytest.raises(ConfigError, match="linear output layer"):
        output_layer(nn.Linear(2, 2))
