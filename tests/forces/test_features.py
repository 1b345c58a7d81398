from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers import GPTJConfig, GPTJForCausalLM

from dynolab.data.batches import count_totals
from dynolab.errors import ConfigError
from dynolab.forces import (
    PolicyFunction,
    consistency,
    feature_change,
    feature_change_along,
    feature_forces,
    feature_step,
    hidden_states,
    split_step,
)
from dynolab.forces.step.split import objective_batch
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig, SimKOConfig, build_objective
from dynolab.training.config import OptimizerConfig
from tests.forces import families
from tests.forces.families import FAMILIES, build, case
from tests.forces.lora import adapted
from tests.forces.small_models import (
    VOCABULARY,
    encoded,
    llama,
    neox,
    pair,
    pairs,
    recorded,
    relative,
    weights,
    with_reference,
)

BLOCKS, ETA = 2, 1e-3
OBSERVED = [encoded(1), pairs(1)[0].chosen]
DPO = build_objective(DPOConfig())
REFERENCES = {
    pair.id: {
        "chosen_reference": [-3.0] * pair.chosen.response_length,
        "rejected_reference": [-3.5] * pair.rejected.response_length,
    }
    for pair in pairs(2)
}


def loss_gradient(policy, examples, objective=DPO):
    """Autograd of the loss that trains, in all weights."""
    leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
    totals = count_totals([example.encoded() for example in examples], objective.sides)
    loss = 0
    for example in examples:
        batch = objective_batch([example], objective, totals, policy)
        loss = loss + objective.loss(policy.logps(leaves, batch), batch)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def step_along(gradient, eta=ETA):
    return {name: -eta * g for name, g in gradient.items()}


def parts(family):
    model = build(family)
    policy = PolicyFunction(model, torch.float64)
    return policy, with_reference(model, pairs(3)), policy.batch(OBSERVED)[0]


def difference(policy, step, batch, layer):
    """A central difference of the features along a step of the weights."""
    size = 1e-3
    forth, back = (
        hidden_states(
            policy, {n: w + sign * size * step[n] for n, w in policy.weights.items()}, batch, layer
        )
        for sign in (1, -1)
    )
    return (forth - back) / (2 * size)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_layer_is_transformers_own_hidden_state(family):
    """Its last entry is the state after the final norm, so it is compared up to there."""
    policy, _, batch = parts(family)
    with torch.no_grad(), policy.differentiable():
        own = policy.model(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            output_hidden_states=True,
            use_cache=False,
        ).hidden_states
    for layer in range(BLOCKS):
        at = hidden_states(policy, policy.weights, batch, layer)
        assert torch.allclose(at, own[layer][batch.sequence, batch.position], atol=1e-12)
    last = hidden_states(policy, policy.weights, batch, -1)
    assert torch.equal(last, hidden_states(policy, policy.weights, batch, BLOCKS))
    normed = final_norm(policy)(last)
    head = policy.model.get_output_embeddings()
    assert torch.allclose(head(normed), policy.logits(policy.weights, batch), atol=1e-6)


def test_blocks_that_return_tuples_can_be_read_and_cut():
    torch.manual_seed(0)
    small = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 32}
    model = GPTJForCausalLM(GPTJConfig(**small, vocab_size=VOCABULARY, initializer_range=0.15))
    policy = PolicyFunction(model.double().eval(), torch.float64)
    batch, _ = policy.batch(OBSERVED)
    last = hidden_states(policy, policy.weights, batch, -1)
    head = model.get_output_embeddings()
    normed = model.transformer.ln_f(last)
    assert torch.allclose(head(normed), policy.logits(policy.weights, batch), atol=1e-9)
    examples = with_reference(model, pairs(2))
    forces = feature_forces(policy, examples, DPO, 1)
    assert all(force.total.norm() > 0 for force in forces)


def final_norm(policy):
    base = policy.model.base_model
    names = ("final_layer_norm", "norm", "ln_f")
    return next(getattr(base, name) for name in names if hasattr(base, name))


@pytest.mark.parametrize("layer", range(BLOCKS + 1))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_formula_is_the_derivative_along_the_loss_gradient(family, layer):
    """`−η Σ_n K f_n` against a central difference of h along autograd's −η ∇L."""
    policy, examples, batch = parts(family)
    change = feature_change(policy, batch, examples, DPO, layer, update=ETA)
    d = step_along(loss_gradient(policy, examples))
    assert relative(change.total, difference(policy, d, batch, layer)) < 1e-6
    assert change.by_example.shape == (len(examples), len(batch.token), 32)
    assert bool(change.shared.any()) == policy.model.config.tie_word_embeddings


@pytest.mark.parametrize("config", [GRPOConfig(), SimKOConfig(share=0.4)], ids=repr)
def test_groups_sampled_at_a_temperature_move_features_too(config):
    here, objective, layer = case("llama_tied"), build_objective(config), 1
    batch, examples = here.policy.batch(OBSERVED)[0], here.updating(objective, 0.7)
    change = feature_change(here.policy, batch, examples, objective, layer, update=families.ETA)
    moved = difference(here.policy, here.descent(objective, 0.7), batch, layer)
    assert relative(change.total, moved) < 1e-6
    forces = feature_forces(here.policy, examples, objective, layer)
    assert [force.id for force in forces] == [example.id for example in examples]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_kernel_times_the_force_formed_densely(layer):
    """`K = J_h(o) J_h(n)ᵀ` and f_n from Jacobians, position by position, on one example."""
    policy = PolicyFunction(neox(), torch.float64)
    (one,) = with_reference(policy.model, [pair(0, prompt=2, chosen=2, rejected=1)])
    batch, _ = policy.batch([one.chosen])
    (force,) = feature_forces(policy, [one], DPO, layer)
    totals = count_totals([one.encoded()], DPO.sides)
    updating = objective_batch([one], DPO, totals, policy)
    everywhere = [
        (row, column)
        for row, length in enumerate(updating.attention_mask.sum(1).tolist())
        for column in range(length)
    ]
    rows = torch.tensor([row for row, _ in everywhere])
    columns = torch.tensor([column for _, column in everywhere])
    spread = replace(
        updating,
        sequence=rows,
        position=columns,
        token=torch.zeros_like(rows),
        reference=None,
    )

    def jacobian(which):
        leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
        flat = hidden_states(policy, leaves, which, layer).flatten()
        made = [
            torch.autograd.grad(
                value, list(leaves.values()), retain_graph=True, materialize_grads=True
            )
            for value in flat
        ]
        return torch.stack([torch.cat([g.flatten() for g in row]) for row in made])

    kernel = jacobian(batch) @ jacobian(spread).T
    truth = -ETA * kernel @ force.cotangent[rows, columns].flatten()
    change = feature_change(policy, batch, [one], DPO, layer, update=ETA)
    assert relative(change.by_example[0].flatten(), truth) < 1e-11


@pytest.mark.parametrize("family", ["llama_tied", "gpt2"])
def test_the_shared_part_is_the_head_s_pull_on_the_table(family):
    """A copy with a head of its own has the same features and no shared part."""
    policy, examples, batch = parts(family)
    free = copy.deepcopy(policy.model)
    free.config.tie_word_embeddings = False
    head = free.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    apart = PolicyFunction(free, torch.float64)
    tied = feature_change(policy, batch, examples, DPO, 1, update=ETA)
    untied = feature_change(apart, batch, examples, DPO, 1, update=ETA)
    assert relative(untied.by_example, tied.by_example) < 1e-12
    assert not untied.shared.any()
    pull = step_along(loss_gradient(apart, examples))["lm_head.weight"]
    (name,) = (
        n
        for n, p in policy.model.named_parameters()
        if p is policy.model.get_input_embeddings().weight
    )
    (along,) = feature_change_along(policy, {}, [{name: pull}], batch, 1)
    assert relative(tied.shared, along) < 1e-12


def test_examples_add_up_to_the_batch():
    policy, examples, batch = parts("gpt_neox")
    whole = feature_change(policy, batch, examples, DPO, 1, update=ETA)
    for number, example in enumerate(examples):
        alone = feature_change(policy, batch, [example], DPO, 1, update=ETA)
        assert relative(whole.by_example[number] * len(examples), alone.total) < 1e-12


def test_a_recorded_step_s_examples_add_up_to_its_gradient_part():
    """Under a preconditioner P: the frozen map of a real AdamW step."""
    model = neox()
    record = recorded(model, OptimizerConfig(name="adamw", learning_rate=1e-3), count=3)
    policy = PolicyFunction(model, torch.float64)
    split = split_step(record, policy)
    batch, _ = policy.batch(OBSERVED)
    change = feature_change(
        policy, batch, record.examples, DPO, 1, update=split.update, at=record.before
    )
    directions = [split.from_chosen, split.from_rejected]
    chosen, rejected = feature_change_along(policy, record.before, directions, batch, 1)
    assert relative(change.total, chosen + rejected) < 1e-9


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_parameters_above_the_layer_move_nothing(layer):
    policy, examples, batch = parts("gpt_neox")
    d = step_along(loss_gradient(policy, examples))
    blocks = [f"layers.{number}." for number in range(layer, BLOCKS)]
    high = ("final_layer_norm", "lm_head", "embed_out", *blocks)
    above = {name: w for name, w in d.items() if any(one in name for one in high)}
    assert above
    below = {name: w for name, w in d.items() if name not in above}
    whole, low, upper = feature_change_along(policy, {}, [d, below, above], batch, layer)
    assert relative(low, whole) < 1e-13
    assert not upper.any()
    after = {name: w + d[name] for name, w in policy.weights.items()}
    moved = {name: w + above.get(name, 0) for name, w in after.items()}
    assert torch.equal(
        hidden_states(policy, after, batch, layer), hidden_states(policy, moved, batch, layer)
    )


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_the_residual_is_second_order(layer):
    policy, examples, batch = parts("gpt_neox")
    start, gradient = policy.weights, loss_gradient(policy, examples)

    def residual(eta, at=start):
        after = {name: w - eta * gradient[name] for name, w in start.items()}
        return feature_step(policy, start, after, batch, layer, at=at).residual.norm()

    if layer == 0:  # embeddings are linear in their table
        assert float(residual(1.0)) < 1e-12
        return
    assert float(residual(0.25) / residual(0.125)) == pytest.approx(4, rel=0.15)
    assert float(residual(0.25, None) / residual(0.125, None)) == pytest.approx(8, rel=0.25)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_features_and_what_stands_above_them_make_the_logit_change(layer):
    """`Δz = ∂z/∂h Δh + ∂z/∂θ_above Δθ_above`; at the last layer the latter is norm and head."""
    policy, examples, batch = parts("llama_untied")
    d = step_along(loss_gradient(policy, examples))
    (dz,) = policy.derivatives(lambda w: policy.logits(w, batch), {}, [d])
    blocks = tuple(f"layers.{number}." for number in range(layer, BLOCKS))
    above = {
        name: w
        for name, w in d.items()
        if any(one in name for one in ("model.norm", "lm_head", *blocks))
    }
    below = {name: w for name, w in d.items() if name not in above}
    (own,) = policy.derivatives(lambda w: policy.logits(w, batch), {}, [above])
    if layer < BLOCKS:
        (through,) = policy.derivatives(lambda w: policy.logits(w, batch), {}, [below])
    else:
        (dh,) = feature_change_along(policy, {}, [d], batch, layer)
        last = hidden_states(policy, {}, batch, layer)

        def head(h):
            return policy.model.lm_head(policy.model.model.norm(h))

        with policy.differentiable():
            _, through = torch.func.jvp(head, (last,), (dh,))
        change = feature_change(policy, batch, examples, DPO, layer, update=ETA)
        assert relative(change.total, dh) < 1e-11
    assert relative(through + own, dz) < 1e-11


@pytest.mark.parametrize("objective", [DPOConfig(), SFTConfig()], ids=["dpo", "sft"])
def test_the_last_layer_s_force_is_the_head_s_transpose_at_predicting_positions(objective):
    """`f = J_normᵀ W_Uᵀ G` there and nowhere else: energy G and direction are apart."""
    model = build("llama_untied")
    policy = PolicyFunction(model, torch.float64)
    examples, built = with_reference(model, pairs(3)), build_objective(objective)
    totals = count_totals([example.encoded() for example in examples], built.sides)
    forces = feature_forces(policy, examples, built, -1)
    assert [force.id for force in forces] == [example.id for example in examples]
    for example, made in zip(examples, forces, strict=True):
        batch = objective_batch([example], built, totals, policy)
        h = hidden_states(policy, {}, batch, -1).requires_grad_()
        with policy.differentiable():
            logits = model.lm_head(model.model.norm(h))
        logits.retain_grad()
        logps = logits.log_softmax(-1).gather(-1, batch.token[:, None])[:, 0]
        built.loss(logps, batch).backward()
        assert relative(made.cotangent[batch.sequence, batch.position], h.grad) < 1e-11
        assert float(made.cotangent.norm()) == pytest.approx(float(h.grad.norm()))
        assert float(made.energy) == pytest.approx(float(logits.grad.norm()))
        assert torch.allclose(made.total, h.grad.sum(0))


def test_padding_and_later_positions_feel_no_force():
    policy, examples, _ = parts("gpt_neox")
    for example, force in zip(examples, feature_forces(policy, examples, DPO, 1), strict=True):
        for row, sequence in enumerate((example.chosen, example.rejected)):
            assert not force.cotangent[row, len(sequence.ids) - 1 :].any()
            assert force.cotangent[row, : len(sequence.ids) - 1].any()


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_adapters_alone_move_the_features(layer):
    """Under LoRA, K is the adapters' own; no block lies below layer 0, so nothing moves there."""
    policy = PolicyFunction(adapted("llama_tied"), torch.float64)
    batch, _ = policy.batch(OBSERVED)
    examples = [pair.model_copy(update=REFERENCES[pair.id]) for pair in pairs(2)]
    change = feature_change(policy, batch, examples, DPO, layer, update=ETA)
    if layer == 0:
        assert not change.total.any()
        return
    d = step_along(loss_gradient(policy, examples))
    adapters = {name: w for name, w in d.items() if "lora" in name}
    (along,) = feature_change_along(policy, {}, [adapters], batch, layer)
    assert relative(change.total, along) < 1e-11
    assert not change.shared.any()


def test_llama_in_float32_agrees_with_float64():
    model = llama(dtype=torch.float32)
    examples = with_reference(model, pairs(2))
    made = []
    for dtype in (torch.float32, torch.float64):
        policy = PolicyFunction(model, dtype)
        batch, _ = policy.batch(OBSERVED)
        made.append(feature_change(policy, batch, examples, DPO, 1).total.double())
    assert relative(*made) < 1e-4


def test_the_model_and_its_hooks_are_left_as_they_were():
    policy, examples, batch = parts("gpt_neox")
    start = weights(policy.model)
    feature_change(policy, batch, examples, DPO, 1)
    hooks = [(*m._forward_hooks, *m._forward_pre_hooks) for m in policy.model.modules()]
    assert not any(hooks)
    assert all(torch.equal(w, start[name]) for name, w in weights(policy.model).items())
    assert all(p.grad is None for p in policy.model.parameters())


ONE = torch.tensor([3.0, 4.0])


@pytest.mark.parametrize(
    ("forces", "resultant", "mean_cosine"),
    [
        (torch.stack([ONE, 10 * ONE, 0.1 * ONE]), 1, 1),
        (torch.eye(4), 0.5, 0),
        (torch.stack([ONE, -ONE]), 0, -1),
    ],
    ids=["one direction", "unrelated", "opposites"],
)
def test_consistency_of_directions_by_hand(forces, resultant, mean_cosine):
    made = consistency(forces)
    assert made.resultant == pytest.approx(resultant, abs=1e-9)
    assert made.mean_cosine == pytest.approx(mean_cosine)


def test_consistency_is_the_mean_over_pairs_and_leaves_out_what_does_not_pull():
    forces = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cosines = torch.nn.functional.cosine_similarity(forces[:, None], forces[None], dim=-1)
    pairwise = (cosines.sum() - 6) / 30
    made = consistency(torch.cat([forces, torch.zeros(2, 5, dtype=torch.float64)]))
    assert made.mean_cosine == pytest.approx(float(pairwise))
    assert made.examples == 6


@pytest.mark.parametrize("layer", [BLOCKS + 1, -BLOCKS - 2])
def test_a_layer_that_is_not_there_is_refused(policy, layer):
    with pytest.raises(ConfigError, match="layer"):
        hidden_states(policy, {}, policy.batch(OBSERVED)[0], layer)


def test_forces_of_nothing_are_refused(policy):
    with pytest.raises(ConfigError, match="examples"):
        feature_change(policy, policy.batch(OBSERVED)[0], [], DPO, 1)
    with pytest.raises(ConfigError, match="at least two"):
        consistency(torch.zeros(3, 4))
