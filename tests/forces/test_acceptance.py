"""What a force engine must meet before its numbers are believed, item by item.

Items with files of their own:

- estimators are unbiased and their standard errors are right:
  `test_kernel_size.py::test_squares_are_unbiased_and_errors_are_those_of_the_seeds`;
- LoRA at B = 0: `test_lora.py::test_where_b_is_zero_only_b_moves`;
- a ZeRO-2 snapshot is one process', and many ranks compute what one process does:
  `../training/test_ranks.py::test_a_zero2_record_has_the_forces_of_one_process`,
  `test_forces_over_ranks.py::test_maps_of_all_ranks_are_those_of_one_process`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.forces import (
    PolicyFunction,
    View,
    breakdown,
    change_of,
    force_map,
    midpoint,
    one_step,
    split_step,
    token_forces,
)
from dynolab.forces.function.views import dtype_preserving
from dynolab.forces.ledger.responses import ResponseLosses
from dynolab.forces.map import factors
from dynolab.objectives import (
    SFT,
    GRPOConfig,
    SFTConfig,
    SimKOConfig,
    SimPO,
    SimPOConfig,
    SLiC,
    SLiCConfig,
    build_objective,
    force,
    read_logps,
)
from dynolab.objectives.pairs import PairObjective
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.training.config import OptimizerConfig
from tests.forces.families import (
    DPO_LOSS,
    ETA,
    FAMILIES,
    OBSERVED,
    Case,
    build,
    case,
    dpo_columns_by_differences,
    dpo_rows_by_differences,
    plain_descent,
)
from tests.forces.linear_softmax import LinearSoftmax
from tests.forces.small_models import (
    VOCABULARY,
    central_difference,
    direction,
    encoded,
    every_objective,
    neox,
    pair,
    recorded,
    relative,
)

SFT_LOSS = SFT(SFTConfig())
every_family = pytest.mark.parametrize("family", FAMILIES)
both_precisions = pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"]
)
LOSSES = every_objective()
every_loss = pytest.mark.parametrize("config", LOSSES, ids=repr)
every_loss_s_step = pytest.mark.parametrize(
    ("config", "temperature"),
    [
        pytest.param(config, temperature, id=f"{config!r} at {temperature}")
        for config in LOSSES
        for temperature in ([1.0, 0.7] if isinstance(config, ClippedConfig) else [1.0])
    ],
)


@pytest.fixture(scope="module")
def unchanged() -> Case:
    """A tied model with a step of three pairs, for tests that leave the model as it is."""
    return case("llama_tied", count=3)


@every_family
@both_precisions
def test_the_map_is_that_of_one_token_after_the_other(family, dtype, bound):
    """Also in groups and spans, with memory for little more than one sequence."""
    here = case(family, dtype)
    truth = here.map_by_tokens()
    assert truth.dtype == dtype
    assert relative(here.map(), truth) < bound
    assert relative(here.map(memory_bytes=2**19 * dtype.itemsize // 4), truth) < bound


@every_family
@both_precisions
def test_columns_sum_to_the_jvp_and_in_fp64_to_the_central_difference(family, dtype, bound):
    here = case(family, dtype)
    batch, step = collate(OBSERVED, 0), here.descent(DPO_LOSS)
    (along,) = here.policy.change_along({}, [step], batch)
    assert relative(here.map().sum(1), along) < bound
    if dtype == torch.float32:
        return
    difference = central_difference(here.policy, here.policy.weights, step, batch)
    assert relative(difference, along) < 1e-6


@every_family
def test_a_step_on_one_loss_token_is_its_column(family):
    """A sum over columns is blind to a shift; this is not."""
    here = case(family, count=1)
    truth = dpo_columns_by_differences(here.policy, OBSERVED[0], here.examples[0])
    assert relative(here.map(observed=OBSERVED[:1]), truth) < 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_realised_step_on_one_loss_token_is_its_column(optimizer):
    """Under the frozen map of a real optimizer step, by its replay and by the force map."""
    record = recorded(neox(), OptimizerConfig(name=optimizer, learning_rate=1e-3))
    policy = PolicyFunction(neox(), torch.float64)
    update, pairs = split_step(record, policy).update, len(record.examples)
    truth = dpo_columns_by_differences(
        policy,
        OBSERVED[0],
        record.examples[1],
        along=update.along,
        at=record.before,
        place=midpoint(record.before, record.after),
        pairs=pairs,
    )
    assert relative(token_forces(record, policy, update, 1, OBSERVED[0]), truth) < 1e-6
    whole = force_map(
        policy, OBSERVED[:1], record.examples, DPO_LOSS, update=update, at=record.before
    )
    both = torch.cat([torch.tensor(whole.block(0, side)) for side in (2, 3)], dim=1)
    replayed = token_forces(record, policy, update, 1, OBSERVED[0], at=record.before)
    assert relative(both, replayed) < 1e-10


@every_family
def test_an_observation_of_one_token_is_its_row(family):
    here = case(family, count=1)
    one = OBSERVED[0]
    found = here.map(observed=[one])
    truth = dpo_rows_by_differences(here.policy, one, here.examples[0])
    assert relative(found, truth) < 1e-6
    places = range(one.prompt_length, len(one.ids))
    alone = here.map(observed=[Encoded(one.ids[: place + 1], place) for place in places])
    assert relative(alone, found) < 1e-10


@every_family
def test_the_head_s_block_is_the_last_layer_s_formula(family):
    """`F_head = −η (H_o H_uᵀ) ∘ [(E − Π) Gᵀ]`, from hidden states alone."""
    here = case(family)
    example = here.examples[0]
    found = breakdown(here.policy, OBSERVED[:1], [example], SFT_LOSS, update=ETA)
    (h_o, e_o), (h_u, e_u) = (last_layer(here.policy, one) for one in (OBSERVED[0], example.chosen))
    assert relative(found.parts["head"], -ETA * (h_o @ h_u.T) * (e_o @ (-e_u).T)) < 1e-10


@torch.no_grad()
def last_layer(policy: PolicyFunction, one: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states before the head and E − Π of a response."""
    batch = collate([one], 0)
    with policy.differentiable():
        hidden = policy.model.base_model(
            input_ids=batch.input_ids, position_ids=batch.position_ids
        ).last_hidden_state[0, batch.position]
    pi = policy.logits({}, batch).softmax(-1)
    return hidden, torch.eye(VOCABULARY, dtype=torch.float64)[batch.token] - pi


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("lead", [0.0, 8.0], ids=["spread", "nearly-certain"])
@every_loss
def test_autograd_s_force_on_the_logits_is_the_closed_form(unchanged, config, lead, temperature):
    here, objective = unchanged, build_objective(config)
    batch = here.batch(objective, temperature)
    logits = here.policy.logits({}, batch).detach()
    logits.scatter_add_(-1, batch.token[:, None], torch.full_like(logits[:, :1], lead))
    logits.requires_grad_()
    logps = read_logps(objective, logits, batch)
    (truth,) = torch.autograd.grad(objective.loss(logps, batch), logits)
    rates = objective.token_weights(logps.detach(), batch)
    closed = force(rates, logits.detach(), batch)
    # VESPO's weight vanishes, and SAPO's is a small rest, where the ratio is huge.
    soft = getattr(config, "surrogate", "clipped") in ("sapo", "vespo")
    assert (closed - truth).norm() <= (1e-10 if soft else 1e-12) * truth.norm()
    assert closed.sum(-1).abs().max() <= 1e-14 * closed.abs().max() * VOCABULARY  # 1ᵀ G = 0
    assert truth.norm() > 0 or soft


@every_loss
def test_a_responses_terms_are_of_autograd_s_force_at_its_temperature(unchanged, config):
    objective = build_objective(config)
    batch = unchanged.batch(objective, 0.7)
    losses = ResponseLosses(objective, batch, with_terms=True)
    logits = unchanged.policy.logits({}, batch).detach().requires_grad_()
    (pulls,) = torch.autograd.grad(losses(logits).sum(), logits)
    sizes = torch.cat([terms.g_norm for terms in losses.terms])
    torch.testing.assert_close(sizes, pulls.norm(dim=-1), rtol=1e-10, atol=1e-14)


@every_loss
def test_weights_change_with_the_policy_as_their_derivative_says(unchanged, config):
    """Also where a loss holds a factor constant, or multiplies a push by a dose."""
    objective = build_objective(config)
    batch = unchanged.batch(objective, 1.0)
    logps = read_logps(objective, unchanged.policy.logits({}, batch).detach(), batch)
    generator = torch.Generator().manual_seed(0)
    if isinstance(objective, PairObjective):
        dose = torch.rand(len(logps), generator=generator, dtype=logps.dtype)
        batch = replace(batch, dose=dose)
    way = torch.randn(logps.shape, generator=generator, dtype=logps.dtype)
    _, along = torch.func.jvp(lambda at: objective.token_weights(at, batch), (logps,), (way,))
    more, less = (objective.token_weights(logps + step * way, batch) for step in (1e-5, -1e-5))
    torch.testing.assert_close(along, (more - less) / 2e-5, rtol=1e-5, atol=1e-8)


@every_loss_s_step
def test_columns_of_every_loss_sum_to_the_change_along_its_gradient(unchanged, config, temperature):
    here, objective = unchanged, build_objective(config)
    step = here.descent(objective, temperature)
    (along,) = here.policy.change_along({}, [step], collate(OBSERVED, 0))
    found = here.map(objective=objective, temperature=temperature)
    assert relative(found.sum(1), along) < 1e-10


@pytest.mark.parametrize("config", [GRPOConfig(kl=0.05), SimKOConfig(share=0.4, kl=0.05)], ids=repr)
def test_a_step_on_one_loss_token_is_its_column_whatever_its_loss_reads(unchanged, config):
    """G's tokens written out: a step on `Σ_j c_j log π_T(t_j)` of one position at a time."""
    here, objective, temperature = unchanged, build_objective(config), 0.7
    batch = here.batch(objective, temperature)
    leaves = {name: w.clone().requires_grad_() for name, w in here.policy.weights.items()}
    warm = here.policy.logits(leaves, batch) / temperature
    dense = warm - warm.exp().sum(-1, keepdim=True).log()
    read = dense.gather(-1, batch.targets if objective.dense else batch.token[:, None])
    logps = (read if objective.dense else read[:, 0]).detach().requires_grad_()
    (slope,) = torch.autograd.grad(objective.loss(logps, batch), logps)
    pushes = (-slope.reshape(read.shape) * read).sum(-1)
    watched = collate(OBSERVED[:1], 0)
    columns = []
    for push in pushes:
        gradient = torch.autograd.grad(push, list(leaves.values()), retain_graph=True)
        step = {name: ETA * g for name, g in zip(leaves, gradient, strict=True)}
        columns.append(central_difference(here.policy, here.policy.weights, step, watched))
    found = here.map(objective=objective, temperature=temperature, observed=OBSERVED[:1])
    assert relative(found, torch.stack(columns, dim=1)) < 1e-6


@pytest.mark.parametrize("config", [GRPOConfig(), SimKOConfig(share=0.4)], ids=repr)
def test_spans_and_blocks_of_a_warm_group_s_map_add_up(unchanged, config):
    """In spans of responses, and its parts by block of parameters."""
    here, objective = unchanged, build_objective(config)
    columns = here.map_by_tokens(objective=objective, temperature=0.7)
    little = here.map(objective=objective, temperature=0.7, memory_bytes=2**20)
    assert relative(little, columns) < 1e-10
    examples = here.updating(objective, 0.7)
    found = breakdown(here.policy, OBSERVED, examples, objective, update=ETA, memory_bytes=2**20)
    assert relative(found.force, columns) < 1e-10
    batch = here.batch(objective, 0.7)
    logits = here.policy.logits({}, batch).detach().requires_grad_()
    loss = objective.loss(read_logps(objective, logits, batch), batch)
    (G,) = torch.autograd.grad(loss, logits)
    updating = [completion.encoded for example in examples for completion in example.completions]
    h_u = torch.cat([last_layer(here.policy, one)[0] for one in updating])
    watched = [last_layer(here.policy, one) for one in OBSERVED]
    h_o, e_o = (torch.cat(each) for each in zip(*watched, strict=True))
    assert relative(found.parts["head"], -ETA * (h_o @ h_u.T) * (e_o @ G.T)) < 1e-10


@pytest.mark.parametrize("lead", [16.0, 20.0, 40.0])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_forces_between_nearly_certain_tokens_keep_their_digits(lead, dtype, bound):
    """1 − π is below the spacing of numbers at one; its size must not come from 1 minus π."""
    model, token = LinearSoftmax().to(dtype), 7
    with torch.no_grad():
        model.head.bias[token] = lead
    one = Encoded((3, 4, 5, *[token] * 4), 3)
    example = pair(5).model_copy(update={"chosen": one})
    found = force_map(PolicyFunction(model, dtype), [one], [example], SFT_LOSS, update=ETA)
    exact = model.double()
    batch = collate([one], 0)
    G = force(torch.ones(4, dtype=torch.float64), exact.logits(one), batch)
    truth = ETA * (G[:, None] * exact.kernel_times(one, one, G)).sum(-1)
    gap = (torch.tensor(found.force).double() - truth).abs() / truth.abs()
    assert float(gap.max()) < bound


@every_family
def test_a_shift_of_all_logits_moves_nothing_and_changes_no_force(family):
    """`A 1 = 0` along a head that shifts every token's logit alike, and far along it."""
    here = case(family, count=1)
    head = here.policy.model.get_output_embeddings()
    if family in ("llama_tied", "qwen2", "gpt2"):
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        here = replace(here, policy=PolicyFunction(here.policy.model, torch.float64))
    (name,) = (name for name, p in here.policy.model.named_parameters() if p is head.weight)
    shift = torch.linspace(-1, 1, head.weight.shape[1], dtype=torch.float64).expand_as(head.weight)
    (moved,) = here.policy.change_along({}, [{name: shift}], collate(OBSERVED, 0))
    other = {name: direction(head, 1.0)["weight"]}
    (turned,) = here.policy.change_along({}, [other], collate(OBSERVED, 0))
    assert moved.abs().max() < 1e-13 * turned.abs().max()
    shifted = {**here.policy.weights, name: here.policy.weights[name] + shift}
    assert relative(here.map(at=shifted), here.map()) < 1e-10


def test_forces_on_the_whole_vocabulary_keep_it_normalised():
    """`π_mᵀ (A K G)_m = 0`, from a map of every token that could stand at m, one by one."""
    here = case("llama_tied", count=1)
    prefix = OBSERVED[0].ids[:5]
    anything = [Encoded((*prefix, token), 5) for token in range(VOCABULARY)]
    found = here.map(observed=anything)
    pi = here.policy.logits({}, collate(anything[:1], 0)).softmax(-1)
    assert (pi @ found).abs().max() < 1e-13 * found.abs().max() * VOCABULARY
    (along,) = here.policy.change_along(
        {}, [here.descent(DPO_LOSS)], collate(anything[:1], 0), view=View.vocabulary()
    )
    assert relative(found.sum(1), along[0]) < 1e-10


@every_family
def test_sft_on_its_own_response_is_eta_times_the_gradient_s_square(family):
    """+η‖g‖² in all; token by token η gᵀg: symmetric, its diagonal positive."""
    here = case(family, count=1)
    own = here.examples[0].chosen
    found = here.map(objective=SFT_LOSS, observed=[own])
    step = here.descent(SFT_LOSS)
    square = sum(float(d.square().sum()) for d in step.values()) / ETA
    assert float(found.sum()) == pytest.approx(square, rel=1e-10)
    assert relative(found.T, found) < 1e-12
    assert (found.diagonal() > 0).all()
    small = {name: w + 1e-6 * step[name] for name, w in here.policy.weights.items()}
    measured = one_step(here.policy, here.policy.weights, small, collate([own], 0)).measured
    assert float(measured.sum()) == pytest.approx(1e-6 * square, rel=1e-4)


def test_a_prefix_shared_by_both_answers_cancels_under_dpo_but_not_under_averages():
    """Equal tokens after equal prefixes push with +c and −c; averaged, with +c/n_c and −c/n_r."""
    here, same = case("llama_untied", count=1), 3
    (one,) = here.examples
    start = one.chosen.ids[: one.chosen.prompt_length + same]
    assert one.rejected is not None
    longer = (*start, *one.rejected.ids[-2:])
    rejected = Encoded(longer, one.chosen.prompt_length)
    one = one.model_copy(
        update={"rejected": rejected, "rejected_reference": [-3.0] * rejected.response_length}
    )
    n_c, n_r = one.chosen.response_length, rejected.response_length
    assert n_c != n_r
    for objective, left in ((DPO_LOSS, 0.0), (SimPO(SimPOConfig()), 1 - n_c / n_r)):
        found = here.map(objective=objective, examples=[one])
        chosen, rejected_too = found[:, :same], found[:, n_c : n_c + same]
        assert chosen.norm() > 1e-6
        gap = chosen + rejected_too - left * chosen
        assert float(gap.norm() / chosen.norm()) < 1e-12
    assert abs(left) > 0.1


@every_loss_s_step
def test_the_map_of_a_linear_softmax_model_is_the_paper_s_formula(unchanged, config, temperature):
    """−η A K G with K written out and G autograd's of the loss that trains."""
    model, objective = LinearSoftmax().double(), build_objective(config)
    policy = PolicyFunction(model, torch.float64)
    here = replace(unchanged, policy=policy, examples=unchanged.examples[:1])
    found = here.map(observed=OBSERVED[:1], objective=objective, temperature=temperature)

    batch = here.batch(objective, temperature)
    logits = here.policy.logits({}, batch).detach().requires_grad_()
    loss = objective.loss(read_logps(objective, logits, batch), batch)
    (G,) = torch.autograd.grad(loss, logits)
    (example,), (one,) = here.examples, OBSERVED[:1]
    updating = [(example.chosen, example.rejected)[side] for side in objective.sides]
    lengths = [response.response_length for response in updating]
    KG = torch.cat(
        [
            model.kernel_times(one, response, part)
            for response, part in zip(updating, G.split(lengths), strict=True)
        ],
        dim=1,
    )
    pi = model.logits(one).softmax(-1)[:, None, :]
    whole = -ETA * (KG - (pi * KG).sum(-1, keepdim=True))
    realised = torch.tensor(one.ids[one.prompt_length :])
    truth = whole[torch.arange(len(realised)), :, realised]
    assert relative(found, truth) < 1e-12
    assert (pi * whole).sum(-1).abs().max() < 1e-14 * max(1.0, float(whole.abs().max()))


def test_maps_add_over_the_batch_and_do_not_see_their_neighbours():
    """Denominators aside, a block is the same whatever stands beside it, and however long."""
    here = case("llama_untied", count=3)
    examples = here.examples
    whole = force_map(here.policy, OBSERVED, examples, DPO_LOSS, update=ETA)
    for o, observed in enumerate(OBSERVED):
        for e, example in enumerate(examples):
            alone = here.map(observed=[observed], examples=[example])
            both = [torch.tensor(whole.block(o, 2 * e + side)) for side in (0, 1)]
            assert relative(len(examples) * torch.cat(both, dim=1), alone) < 1e-10


def test_maps_add_over_the_terms_of_a_loss():
    """SLiC is its hinge and λ times SFT on the chosen answer."""
    here, weight = case("mistral"), 0.3
    hinge, whole = (
        here.map(objective=SLiC(SLiCConfig(margin=50.0, sft_weight=w))) for w in (0.0, weight)
    )
    chosen = here.map(objective=SFT_LOSS)
    added = whole - hinge
    columns = torch.cat(
        [
            torch.full((one.response_length,), one is example.chosen)
            for example in here.examples
            for one in (example.chosen, example.rejected)
        ]
    )
    assert relative(added[:, columns], weight * chosen) < 1e-10
    assert float(added[:, ~columns].norm()) < 1e-10 * float(chosen.norm())


@pytest.mark.parametrize("block", ["k_proj", "norm", "mlp", "embed_tokens"])
def test_a_block_is_the_map_of_a_model_in_which_nothing_else_trains(block):
    here = case("qwen2")
    parts = breakdown(here.policy, OBSERVED, here.examples, DPO_LOSS, update=ETA).parts
    for name, parameter in here.policy.model.named_parameters():
        parameter.requires_grad_(block in name)
    words = {
        "k_proj": ["attention.k"],
        "norm": ["norms"],
        "mlp": ["mlp"],
        "embed_tokens": ["embedding", "head", "tied"],
    }
    alone = here.map_by_tokens()
    assert relative(sum(parts[word] for word in words[block]), alone) < 1e-10


@pytest.mark.parametrize("family", ["gpt_neox", "llama_untied"])
def test_a_step_of_the_head_alone_is_predicted(family):
    """Nothing before the head has a gradient, so that its input begins the graph."""
    here = case(family, count=1)
    head = "lm_head.weight"
    here.policy.model.requires_grad_(False).get_parameter(head).requires_grad_()
    truth = dpo_columns_by_differences(
        here.policy,
        OBSERVED[0],
        here.examples[0],
        along=lambda gradient: {
            name: (name == head) * change for name, change in plain_descent(gradient).items()
        },
    )
    assert relative(here.map(observed=OBSERVED[:1]), truth) < 1e-6
    parts = breakdown(here.policy, OBSERVED[:1], here.examples, DPO_LOSS, update=ETA)
    assert list(parts.parts) == ["head"] and relative(parts.force, truth) < 1e-6


@every_family
def test_one_token_of_prompt_and_response(family):
    here = replace(case(family), examples=())
    one = pair(6, prompt=1, chosen=1, rejected=1)
    example = one.model_copy(update={"chosen_reference": [-3.0], "rejected_reference": [-4.0]})
    observed = encoded(5, 1, 1)
    found = here.map(observed=[observed], examples=[example])
    assert found.shape == (1, 2)
    assert relative(found, dpo_columns_by_differences(here.policy, observed, example)) < 1e-6


def test_truncating_after_either_token_leaves_their_force_alone(unchanged):
    """Causality: what stands after m or after l has no part in F[m, l]."""
    here = unchanged
    whole = pair(3, chosen=6)
    cut = whole.model_copy(update={"chosen": Encoded(whole.chosen.ids[:-2], 4)})
    shorter = Encoded(OBSERVED[0].ids[:-2], OBSERVED[0].prompt_length)
    full = here.map(observed=OBSERVED[:1], examples=[whole], objective=SFT_LOSS)
    part = here.map(observed=[shorter], examples=[cut], objective=SFT_LOSS)
    assert relative(part, full[:-2, :-2]) < 1e-10


def test_the_residual_is_second_order_at_the_start_and_third_at_the_midpoint():
    policy, batch = PolicyFunction(neox(), torch.float64), collate(OBSERVED, 0)
    start, d = policy.weights, direction(policy.model, 4e-3)

    def residual(scale: float, from_start: bool) -> float:
        after = {name: w + scale * d[name] for name, w in start.items()}
        place = start if from_start else None
        return float(one_step(policy, start, after, batch, at=place).residual.norm())

    assert residual(1.0, True) / residual(0.5, True) == pytest.approx(4, rel=0.15)
    assert residual(1.0, False) / residual(0.5, False) == pytest.approx(8, rel=0.25)
    assert residual(1.0, False) < residual(1.0, True) / 3


@every_family
def test_one_adam_step_from_zero_state_is_predicted(family):
    """torch's first step is −η κg/(κ|g| + ε); the map under its frozen scale sums to its effect."""
    model = build(family)
    with dtype_preserving(model):
        record = recorded(model, OptimizerConfig(name="adamw", learning_rate=1e-5), steps=1)
    d = change_of(record.before, record.after)
    policy = PolicyFunction(model, torch.float64)
    here = replace(case(family), policy=policy, examples=record.examples)
    split = split_step(record, policy)
    for name in split.from_chosen:
        total = split.total_of(name)
        torch.testing.assert_close(total, d[name], rtol=1e-6, atol=1e-12)
    found = here.map(update=split.update, at=record.before)
    step = one_step(policy, record.before, record.after, collate(OBSERVED, 0), at=record.before)
    assert relative(found.sum(1), step.predicted) < 1e-6
    assert relative(step.measured, step.predicted) < 1e-2


@every_family
@pytest.mark.parametrize("padded", ["right", "left"])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_padding_and_company_change_nothing(family, padded, dtype, bound):
    policy = PolicyFunction(build(family, dtype), dtype)
    sequences = [encoded(1), encoded(2, 6, 3), encoded(3, 1, 1)]
    batch = collate(sequences, 0)
    d = direction(policy.model, 1e-3)
    together = batch if padded == "right" else left_padded(batch)
    (found,), logps = policy.change_along({}, [d], together), policy.logps({}, together)
    for number, sequence in enumerate(sequences):
        one = collate([sequence], 0)
        (alone,) = policy.change_along({}, [d], one)
        assert relative(found[batch.sequence == number], alone) < bound
        assert relative(logps[batch.sequence == number], policy.logps({}, one)) < bound


def left_padded(batch: TokenBatch) -> TokenBatch:
    """The same sequences, ending together."""
    shift = batch.attention_mask.shape[1] - batch.attention_mask.sum(1)

    def moved(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(int(n)) for row, n in zip(rows, shift, strict=True)])

    mask = moved(batch.attention_mask)
    return replace(
        batch,
        input_ids=moved(batch.input_ids),
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        position=batch.position + shift[batch.sequence],
    )


@pytest.mark.parametrize("broken", ["_table_rows", "normed"])
def test_a_wrong_rule_is_found_and_its_parameters_taken_whole(broken, monkeypatch):
    """The engine tries its rules against autograd before it trusts them."""
    here = case("llama_tied", count=1)
    truth = dpo_columns_by_differences(here.policy, OBSERVED[0], here.examples[0])
    true = getattr(factors, broken)

    def wrong(*arguments):  # type: ignore[no-untyped-def]
        found = true(*arguments)
        return replace(found, rows=2 * found.rows) if broken == "_table_rows" else 2 * found

    monkeypatch.setattr(factors, broken, wrong)
    assert relative(here.map(observed=OBSERVED[:1]), truth) < 1e-6
