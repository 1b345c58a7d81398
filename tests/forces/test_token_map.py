"""One pair's token map, and the terms A and G token by token."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.data.token_texts import token_strings
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    build_token_map,
    midpoint,
    response_terms,
    split_step,
    step_terms,
    token_forces,
    token_terms,
)
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger import pushes as pushes_module
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.pushes import example_pushes, side_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.step.split import UpdateSplit, record_batch
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, build_objective
from dynolab.objectives.base import force
from dynolab.results.study import TokenMap
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_batch import RecordedCompletion
from dynolab.training.step_record import RecordedGroup, StepRecord
from tests.forces.brute_ledger import dose_gradients, torch_step
from tests.forces.small_models import (
    VOCABULARY,
    Letters,
    encoded,
    neox,
    read,
    recorded,
    relative,
)

OBSERVED = encoded(77, prompt=4, response=6)


@pytest.fixture(scope="module")
def record() -> StepRecord:
    return recorded(neox(), count=3)


def written(record: StepRecord, policy: PolicyFunction, updating_id: str) -> TokenMap:
    return build_token_map(
        record,
        policy,
        Letters(),
        stage=record.facts.objective.name,
        updating_id=updating_id,
        observed_id="other",
        observed=OBSERVED,
    )


def along_parts(record: StepRecord, policy: PolicyFunction, split: UpdateSplit) -> torch.Tensor:
    """First-order change of the observed answer through chosen, rejected and both answers."""
    return policy.change_along(
        midpoint(record.before, record.after),
        [split.from_chosen, split.from_rejected, split.from_together],
        collate([OBSERVED], 0),
    )


def test_columns_add_up_to_the_example_s_share_of_the_step(record, policy):
    """Over one example and a plain gradient step, to from_chosen and from_rejected themselves."""
    alone = dataclasses.replace(record.as_gradient_step(), examples=record.examples[1:2])
    split = split_step(alone, policy)
    chosen_part, rejected_part, together = along_parts(alone, policy, split)
    assert together.abs().max() < 1e-15
    force = token_forces(alone, policy, split.update, 0, OBSERVED)
    border = alone.examples[0].chosen.response_length
    assert relative(force[:, :border].sum(1), chosen_part) < 1e-10
    assert relative(force[:, border:].sum(1), rejected_part) < 1e-10

    step = split_step(record, policy)
    by_example = [token_forces(record, policy, step.update, n, OBSERVED) for n in range(3)]
    both = along_parts(record, policy, step).sum(0)
    assert relative(sum(force.sum(1) for force in by_example), both) < 1e-10


@pytest.mark.parametrize("free", [2**40, 0])
def test_an_example_s_push_is_the_sum_of_its_map(record, policy, free, monkeypatch):
    """With room for the gradients of all examples at once, or of one."""
    monkeypatch.setattr(pushes_module, "memory_for", lambda *of: free)
    record = record.as_gradient_step()
    split, observed = split_step(record, policy), [OBSERVED, encoded(78)]
    pushes = example_pushes(record, gradients_of(record, policy), split.gradient, observed)
    for answer, own in zip(observed, pushes, strict=True):
        maps = [token_forces(record, policy, split.update, n, answer).sum() for n in range(3)]
        assert relative(own, torch.stack(maps)) < 1e-10


def test_a_push_is_what_the_step_would_have_lacked_without_the_example(record, policy):
    """Under AdamW, by torch's own steps; a written map's sides add up to theirs."""
    split, route = split_step(record, policy), gradients_of(record, policy)
    by_response = dose_gradients(record, policy)
    slopes = slopes_of(
        [Functional.mean("", [OBSERVED])], route, midpoint(record.before, record.after)
    ).gradients[0]

    def lacking(responses: set[int]) -> float:
        rest = [g for place, g in enumerate(by_response) if place not in responses]
        with_all, without = (torch_step(record, grads) for grads in (by_response, rest))
        change = {name: with_all[name][0] - other[0] for name, other in without.items()}
        return float(slopes @ flatten(change))

    pushes = example_pushes(record, route, split.gradient, [OBSERVED])[0]
    for number, push in enumerate(pushes.tolist()):
        assert push == pytest.approx(lacking({2 * number, 2 * number + 1}), rel=1e-8)
    sides = side_pushes(record, route, split.gradient, [OBSERVED], 1)[0].tolist()
    assert sides == pytest.approx([lacking({2}), lacking({3})], rel=1e-8)
    written_map = np.array(written(record, policy, record.examples[1].id).force)
    border = record.examples[1].chosen.response_length
    shares = [written_map[:, :border].sum(), written_map[:, border:].sum()]
    assert shares == pytest.approx(sides, rel=1e-6)


def test_the_written_map_names_its_tokens(record, policy):
    record, example = record.as_gradient_step(), record.examples[2]
    force = token_forces(record, policy, split_step(record, policy).update, 2, OBSERVED)
    assert force.shape == (6, example.chosen.response_length + example.rejected.response_length)
    made = written(record, policy, example.id)
    assert np.array(made.force) == pytest.approx(force.numpy())
    assert made == TokenMap(
        stage="dpo",
        step=record.facts.step,
        observed_id="other",
        updating_id=example.id,
        learning_rate=record.facts.learning_rate,
        observed_tokens=read(OBSERVED),
        chosen_tokens=read(example.chosen),
        rejected_tokens=read(example.rejected),
        force=made.force,
    )
    named = r"updating_id = 'nobody': give an example of the step: \['pair-0', 'pair-1', 'pair-2'\]"
    with pytest.raises(ConfigError, match=named):
        written(record, policy, "nobody")


def test_tokens_are_shown_with_the_spaces_and_bytes_that_decoding_loses() -> None:
    vocabulary = {"<unk>": 0, "</s>": 1, "▁": 2, "▁a": 3, "b": 4, "<0xE2>": 5}
    own = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    own.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>", unk_token="<unk>")
    shown = token_strings(Encoded((4, 2, 3, 4, 5, 0, 1), 1), tokenizer)
    assert shown == [" ", " a", "b", "<0xE2>", "<unk>", "</s>"]


def test_a_space_that_decoding_keeps_is_shown_once() -> None:
    own = Tokenizer(models.BPE(vocab={"▁a": 0, "b": 1}, merges=[]))
    own.decoder = decoders.Replace("▁", " ")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own)
    assert token_strings(Encoded((0, 1), 0), tokenizer) == [" a", "b"]


def test_a_groups_map_lists_all_completions_that_were_pushed_up_first(record, policy) -> None:
    first, second, _ = record.examples
    group = RecordedGroup(
        id="group",
        completions=tuple(
            RecordedCompletion(
                encoded=sequence,
                advantage=[advantage] * sequence.response_length,
                old=[-1.0] * sequence.response_length,
            )
            for sequence, advantage in (
                (first.chosen, 0.5),
                (first.rejected, -1.0),
                (second.chosen, 0.4),
                (second.rejected, -0.2),
            )
        ),
    )
    facts = record.facts.model_copy(update={"objective": GRPOConfig()})
    grouped = dataclasses.replace(record, facts=facts, examples=(group,))
    made = written(grouped, policy, "group")
    assert made.chosen_tokens == read(first.chosen) + read(second.chosen)
    assert made.rejected_tokens == read(first.rejected) + read(second.rejected)
    assert all(len(row) == len(made.chosen_tokens + made.rejected_tokens) for row in made.force)


def test_a_parameter_that_a_response_does_not_reach_does_not_move(record, policy) -> None:
    model = neox()
    idle = {"idle": torch.ones(2, dtype=torch.float64)}
    model.register_parameter("idle", torch.nn.Parameter(idle["idle"].clone()))
    wider = dataclasses.replace(
        record, before={**record.before, **idle}, after={**record.after, **idle}
    )
    idling = PolicyFunction(model, torch.float64)
    split = split_step(wider, idling)
    assert split.from_chosen["idle"].tolist() == split.from_rejected["idle"].tolist() == [0, 0]
    expected = token_forces(record, policy, split_step(record, policy).update, 1, OBSERVED)
    assert relative(token_forces(wider, idling, split.update, 1, OBSERVED), expected) < 1e-12


V = 7


def some_logits(temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(20, V, generator=generator, dtype=torch.float64) / temperature
    return logits, torch.randint(V, (20,), generator=generator)


@pytest.mark.parametrize("temperature", [0.05, 1.0, 100.0])
def test_terms_are_those_of_the_dense_matrices(temperature):
    logits, token = some_logits(temperature)
    rates = torch.linspace(-2, 2, len(token), dtype=torch.float64)
    terms = token_terms(logits, token, rates)
    one = torch.eye(V, dtype=torch.float64)
    for n, (z, y) in enumerate(zip(logits, token, strict=True)):
        pi = z.softmax(-1)
        dense = one - torch.ones(V, 1, dtype=torch.float64) @ pi[None]
        g = rates[n] * (pi - one[y])
        truth = {
            "logp": pi[y].log(),
            "a_frobenius": torch.linalg.matrix_norm(dense),
            "energy": 1 - pi[y],
            "force_size": (pi - one[y]).norm(),
            "g_norm": g.norm(),
        }
        for name, value in truth.items():
            got = float(getattr(terms, name)[n])
            assert got == pytest.approx(float(value), rel=1e-9, abs=1e-13), name


def test_a_nearly_certain_token_keeps_its_digits_in_float32():
    """With one logit 30 above the others, 1 − π_y = (V − 1) e^{−30}, far below float32's ε."""
    logits = torch.tensor([[30.0, *[0.0] * (V - 1)]])
    terms = token_terms(logits, torch.tensor([0]))
    small = (V - 1) * math.exp(-30)
    assert terms.energy.dtype == torch.float32
    expected = small, small * math.sqrt(1 + 1 / (V - 1))
    for value, truth in zip((terms.energy, terms.force_size), expected, strict=True):
        assert float(value) == pytest.approx(truth, rel=1e-5, abs=0)


def test_an_impossible_token_is_no_nan():
    terms = token_terms(torch.tensor([[0.0, 0.0, float("-inf")]]), torch.tensor([2]))
    values = [float(value) for value in (terms.energy, terms.force_size)]
    assert values == pytest.approx([1, math.sqrt(1.5)])


def test_responses_terms_know_neither_batch_nor_padding(policy):
    sequences = [encoded(1), encoded(2, 6, 3), encoded(3, 1, 1), encoded(4, 2, 7)]
    together = response_terms(policy, sequences)
    alone = response_terms(policy, sequences, batch_tokens=1)
    for one, other, sequence in zip(together, alone, sequences, strict=True):
        assert len(one.energy) == sequence.response_length
        for name, values in vars(one).items():
            assert torch.allclose(values, getattr(other, name), atol=1e-12), name
        logits = policy.logits({}, collate([sequence], 0))
        direct = token_terms(logits, torch.tensor(sequence.ids[sequence.prompt_length :]))
        assert torch.allclose(one.energy, direct.energy, atol=1e-12)
        assert torch.all(one.learning_rate == 1)


@pytest.mark.parametrize("objective", [DPOConfig(), SFTConfig()], ids=["dpo", "sft"])
def test_a_step_s_terms_are_those_of_the_force_that_trained(policy, objective):
    record = recorded(neox(), OptimizerConfig(name="sgd", learning_rate=1e-2), objective, count=4)
    made = step_terms(record, policy)
    built = build_objective(record.facts.objective)
    batch = record_batch(record, policy, range(len(record.examples)))
    logits = policy.logits(policy.cast(record.before), batch).requires_grad_()
    loss = built.loss(logits.log_softmax(-1).gather(-1, batch.token[:, None])[:, 0], batch)
    (g,) = torch.autograd.grad(loss, logits)
    sizes = torch.cat([one.terms.g_norm for one in made])
    assert torch.allclose(sizes, g.norm(dim=-1), rtol=1e-9)
    rates = torch.cat([one.terms.learning_rate for one in made])
    assert torch.allclose(force(rates, logits.detach(), batch), g, atol=1e-14)

    sides = [
        (example.id, side, response.ids[response.prompt_length :])
        for example in record.examples
        for side, response in (("chosen", example.chosen), ("rejected", example.rejected))
        if side == "chosen" or isinstance(objective, DPOConfig)
    ]
    assert [(u.updating.id, u.updating.side, u.updating.tokens) for u in made] == sides
    for one in made:
        assert bool((one.terms.learning_rate > 0).all()) == (one.updating.side == "chosen")
        assert float(one.terms.a_frobenius.max()) <= math.sqrt(2 * VOCABULARY - 2)


def test_a_step_s_terms_know_no_micro_batches(policy):
    record = recorded(neox(), count=4)
    whole, small = step_terms(record, policy), step_terms(record, policy, batch_tokens=1)
    assert [terms.updating for terms in whole] == [terms.updating for terms in small]
    for one, other in zip(whole, small, strict=True):
        assert torch.allclose(one.terms.g_norm, other.terms.g_norm, atol=1e-14)
