"""A few families through the benchmark's own code: heads with a tail, experts, recurrence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, force_map
from dynolab.forces.function.derivatives import _sample, derivatives_of
from dynolab.objectives import SFT, SFTConfig
from dynolab.training.step_record import RecordedExample
from tests.benchmarks.families import CHOSEN, OBSERVED, Finding, figures, try_family
from tests.benchmarks.models import build
from tests.forces.small_models import llama


@pytest.mark.parametrize("name", ["cohere", "gemma2", "mixtral", "modernbert_decoder"])
def test_heads_with_a_tail_and_experts_are_exact(name: str) -> None:
    finding = try_family(name)
    assert not finding.wrong and not finding.refused, finding
    assert name == "modernbert_decoder" or len(finding.logp) == 3
    assert finding.force > 0


def test_a_recurrent_family_runs_with_plain_rows() -> None:
    finding = try_family("rwkv")
    assert not finding.wrong and not finding.refused, finding
    assert set(finding.logp) == {"alone", "padded"}


def test_the_padding_row_of_an_embedding_is_not_measured() -> None:
    """It is zero, has no gradient, and every norm after it bends sharply."""
    for name in ("llama", "falcon_h1"):
        model = build(name)
        assert model.get_input_embeddings().padding_idx == 0
        policy = PolicyFunction(model, torch.float64)
        for seed in range(20):
            sample = _sample(policy.causal, torch.Generator().manual_seed(seed))
            assert 0 not in sample.ids and max(sample.ids) < model.config.vocab_size
        assert derivatives_of(policy).agrees("backward")


class _StraightThrough(torch.autograd.Function):
    """A rounding whose gradient is passed through, as quantised layers train."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return (4 * value).round() / 4

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient


def test_gradients_that_are_not_of_the_forward_are_refused() -> None:
    model = llama(dtype=torch.float64)
    model.model.layers[0].register_forward_hook(
        lambda module, inputs, output: _StraightThrough.apply(output)
    )
    policy = PolicyFunction(model, torch.float64)
    assert not derivatives_of(policy).agrees("backward")
    example = RecordedExample(id="one", chosen=CHOSEN)
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM.*backward derivative: differs"):
        force_map(policy, [OBSERVED], [example], SFT(SFTConfig()))


def test_a_wrong_number_and_a_foreign_error_both_count_as_silently_wrong() -> None:
    findings = {
        "right": Finding(logp={"alone": 0.0}),
        "refused": Finding(refused="model", logp={"alone": 0.0}),
        "wrong": Finding(logp={"alone": 0.1}),
        "nan": Finding(logp={"alone": 0.0}, force=float("nan")),
        "foreign": Finding(foreign="ValueError"),
    }
    counts = figures(findings)
    keys = ("families_exact", "families_refused_clearly", "silently_wrong")
    assert [counts[key] for key in keys] == [1, 1, 3]
