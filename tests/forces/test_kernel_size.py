from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.kernel.operator import kernel_blocks, response_token
from dynolab.forces.kernel.size import _norms, _of_images, kernel_sizes
from tests.forces.small_models import VOCABULARY, encoded, llama, neox, relative

OBSERVED = [encoded(1, 4, 3), encoded(2, 2, 4), encoded(5, 6, 2)]
UPDATING = [encoded(3, 4, 3), encoded(4, 3, 2)]
HEAD = "lm_head.weight"

SEEN, TAUGHT = encoded(1, 4, 2), encoded(2, 2, 3)


def jacobian(function, item) -> Tensor:
    """∂ logits/∂θ by autograd's own reverse-mode Jacobian, positions × classes × parameters."""
    batch = function.batch([item])
    jacobians = jacrev(lambda w: function.logits(w, batch))(function.weights)
    return torch.cat([jacobians[name].flatten(2) for name in function.weights], dim=-1)


def dense(function, o, u, scale=None) -> Tensor:
    metric = 1.0 if scale is None else torch.cat([scale[n].flatten() for n in function.weights])
    return torch.einsum("mip,ljp->mlij", jacobian(function, o) * metric, jacobian(function, u))


def exact_norms(function, observed, updating) -> dict[str, np.ndarray]:
    blocks = [[kernel_blocks(function, o, u) for u in updating] for o in observed]
    C = torch.eye(blocks[0][0].shape[-1], dtype=torch.float64)
    C -= 1 / len(C)
    return {
        "raw": np.array([[float(K.norm()) for K in row] for row in blocks]),
        "centred": np.array([[float((C @ K @ C).norm()) for K in row] for row in blocks]),
    }


@pytest.fixture(scope="module")
def truth(policy) -> dict[str, np.ndarray]:
    return exact_norms(policy, OBSERVED, UPDATING)


@pytest.mark.parametrize("build", [neox, llama])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_blocks_are_products_of_autograd_s_jacobians(build, preconditioned):
    function = PolicyFunction(build(dtype=torch.float64), torch.float64)
    generator = torch.Generator().manual_seed(9)
    drawn = {
        name: 0.1 + torch.rand(w.shape, generator=generator, dtype=torch.float64)
        for name, w in function.weights.items()
    }
    scale = drawn if preconditioned else None
    found = kernel_blocks(function, SEEN, TAUGHT, scale=scale)
    assert found.shape == (2, 3, VOCABULARY, VOCABULARY)
    assert relative(found, dense(function, SEEN, TAUGHT, scale)) < 1e-12


def test_frozen_parameters_carry_nothing():
    model = neox()
    model.requires_grad_(False).lm_head.weight.requires_grad_()
    function = PolicyFunction(model, torch.float64)
    head = {HEAD: torch.ones_like(function.weights[HEAD])}
    assert (
        relative(
            kernel_blocks(function, SEEN, TAUGHT), kernel_blocks(function, SEEN, TAUGHT, scale=head)
        )
        == 0
    )
    # The head's block is (h_o · h_u) I: it has no entry off the diagonal.
    blocks = kernel_blocks(function, SEEN, TAUGHT)
    assert (blocks - torch.diag_embed(blocks.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-12


def test_norms_are_exact_where_the_directions_span_the_logits(policy, truth):
    found = kernel_sizes(policy, OBSERVED, UPDATING, rank=3 * VOCABULARY)
    for name in ("raw", "centred"):
        np.testing.assert_allclose(getattr(found, name), truth[name], rtol=1e-10)
        assert (getattr(found, f"{name}_error") == 0).all()


@pytest.mark.parametrize("rank", [0, 3])
def test_squares_are_unbiased_and_errors_are_those_of_the_seeds(policy, truth, rank):
    """Over seeds; each seed's mistakes are shared by the observed responses, so few count."""
    runs = [
        kernel_sizes(policy, OBSERVED, UPDATING, rank=rank, probes=6, seed=seed)
        for seed in range(40)
    ]
    for name in ("raw", "centred"):
        values = np.array([getattr(run, name) ** 2 for run in runs]) / truth[name] ** 2
        error = values.std(0, ddof=1) / len(runs) ** 0.5
        assert (np.abs(values.mean(0) - 1) < 4 * error).all()
        # The variance of a square is (2 · norm · error)².
        stated = [(2 * getattr(run, name) * getattr(run, f"{name}_error")) ** 2 for run in runs]
        stated = np.mean(stated, axis=0) / truth[name] ** 4
        assert 0.6 < float((stated / values.var(0, ddof=1)).mean()) < 1.6


def test_deflation_makes_the_error_smaller(policy):
    errors = [
        kernel_sizes(policy, OBSERVED, UPDATING, rank=rank, seed=1).centred_error.mean()
        for rank in (0, 4, 16)
    ]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.5 * errors[2]


def test_vectors_depend_on_the_seed_and_not_on_weights_or_precision(policy):
    own = kernel_sizes(policy, OBSERVED, UPDATING, seed=0)
    narrow = kernel_sizes(PolicyFunction(neox(), torch.float32), OBSERVED, UPDATING, seed=0)
    np.testing.assert_allclose(own.centred, narrow.centred, rtol=1e-4)
    other = kernel_sizes(policy, OBSERVED, UPDATING, seed=1)
    assert np.abs(own.centred / other.centred - 1).max() > 1e-3
    twice = {name: 2 * torch.ones_like(w) for name, w in policy.weights.items()}
    doubled = kernel_sizes(policy, OBSERVED, UPDATING, scale=twice)
    np.testing.assert_allclose(doubled.centred, 2 * own.centred, rtol=1e-8)


def test_the_company_of_other_responses_and_the_memory_change_nothing(policy):
    together = kernel_sizes(policy, OBSERVED, UPDATING[:1])
    for number, one in enumerate(OBSERVED):
        alone = kernel_sizes(policy, [one], UPDATING[:1])
        for name in ("raw", "centred", "raw_error", "centred_error"):
            np.testing.assert_allclose(
                getattr(alone, name), getattr(together, name)[[number]], rtol=1e-9
            )
    few_bytes = 4 * 16 * 4 * VOCABULARY * 8
    split = kernel_sizes(policy, OBSERVED, UPDATING[:1], memory_bytes=few_bytes)
    np.testing.assert_allclose(split.centred, together.centred, rtol=1e-9)


def test_one_token_pair_is_a_pair_of_responses(policy):
    o, u = encoded(1, 4, 3), encoded(2, 2, 4)
    whole = kernel_blocks(policy, o, u)
    block = kernel_blocks(policy, response_token(o, 1), response_token(u, -1))
    assert relative(block[0, 0], whole[1, 3]) < 1e-12
    size = kernel_sizes(policy, [response_token(o, 1)], [response_token(u, -1)], rank=VOCABULARY)
    assert float(size.raw[0, 0]) == pytest.approx(float(whole[1, 3].norm()), rel=1e-10)


def test_the_kernel_is_taken_where_at_says(policy):
    moved = {name: 1.1 * w for name, w in policy.weights.items()}
    other = neox()
    other.load_state_dict(moved)
    o, u = OBSERVED[0], UPDATING[0]
    there = kernel_blocks(PolicyFunction(other, torch.float64), o, u)
    assert relative(kernel_blocks(policy, o, u, at=moved), there) < 1e-12
    assert relative(kernel_blocks(policy, o, u), there) > 0.01


def test_a_kernel_without_coupling_has_no_size(policy):
    none = {name: torch.zeros_like(w) for name, w in policy.weights.items()}
    sizes = kernel_sizes(policy, OBSERVED, UPDATING, scale=none, rank=1, probes=2)
    assert (sizes.raw == 0).all() and (sizes.raw_error == 0).all()


def test_what_does_not_fit_says_how_many_bytes_it_takes(policy):
    needed = 8 * (3 * 3 * VOCABULARY**2 + (3 * VOCABULARY) ** 2)
    with pytest.raises(ConfigError, match=f"take {needed} bytes"):
        kernel_blocks(policy, OBSERVED[0], UPDATING[0], memory_bytes=needed - 1)
    kernel_blocks(policy, OBSERVED[0], UPDATING[0], memory_bytes=needed)
    needed = 4 * 8 * 16 * 4 * VOCABULARY
    with pytest.raises(ConfigError, match=rf"observed\[1\] .* {needed} bytes"):
        kernel_sizes(policy, OBSERVED, UPDATING, memory_bytes=needed - 4)
    with pytest.raises(ConfigError, match=rf"updating\[1\] .* {needed} bytes"):
        kernel_sizes(policy, OBSERVED[:1], OBSERVED, memory_bytes=needed - 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"probes": 1}, "probes"),
        ({"rank": -1}, "rank"),
        ({"updating": []}, "updating"),
        ({"observed": [OBSERVED[0], Encoded((3, 4), 2)]}, r"observed\[1\]"),
        ({"scale": {"other": torch.ones(1)}}, "no such parameter"),
        ({"scale": {}}, "scale"),
        ({"policy": PolicyFunction(neox(), torch.bfloat16)}, "float32 or float64"),
    ],
    ids=["probes", "rank", "updating", "observed", "name", "scale", "precision"],
)
def test_bad_questions_are_refused(policy, changed, message):
    question = {"policy": policy, "observed": OBSERVED, "updating": UPDATING}
    with pytest.raises(ConfigError, match=message):
        kernel_sizes(**{**question, **changed})


def test_a_norm_and_its_error_by_hand() -> None:
    """√(1 + 2) and √0.5/(2√3); without an estimated rest, and without coupling, no error."""
    norm, error = _norms(np.array([[1.0, 4.0, 0.0], [2.0, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    assert norm.tolist() == pytest.approx([3**0.5, 2, 0])
    assert error.tolist() == pytest.approx([0.5**0.5 / (2 * 3**0.5), 0, 0])


def test_the_variance_of_random_images_is_that_of_their_inner_products() -> None:
    images = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squares = _of_images(basis, images)
    flat = images.flatten(1)
    products = [float(flat[i] @ flat[j]) ** 2 for i in range(5) for j in range(5) if i != j]
    exact, rest = float(basis.square().sum()), float(flat.square().sum(1).mean())
    assert squares.tolist() == pytest.approx([exact, rest, 2 * np.mean(products) / 5])
