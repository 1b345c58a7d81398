"""Every optimizer's step as an affine map of the gradient, against torch's own and by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dynolab.forces.step import optimizers
from dynolab.forces.step.optimizers import (
    FrozenUpdate,
    OptimizerMap,
    Removal,
    clipping_of,
    optimizer_map,
)
from dynolab.objectives import DPOConfig
from dynolab.training.config import OptimizerConfig
from dynolab.training.step_record import StepFacts

ETA, CLIP, DECAY, EPSILON = 0.1, 0.5, 0.2, 0.3
START = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
GRADIENTS = [
    torch.tensor(values, dtype=torch.float64)
    for values in ([0.4, -1.0, 2.0], [1.0, 3.0, -0.5], [-2.0, 0.7, 0.9])
]

OPTIMIZERS: dict[str, tuple[OptimizerConfig, Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "sgd": (
        OptimizerConfig(name="sgd", learning_rate=ETA, momentum=0.9, weight_decay=DECAY),
        lambda w: torch.optim.SGD(w, lr=ETA, momentum=0.9, weight_decay=DECAY),
    ),
    "adamw": (
        OptimizerConfig(
            name="adamw", learning_rate=ETA, betas=(0.8, 0.9), weight_decay=DECAY, epsilon=EPSILON
        ),
        lambda w: torch.optim.AdamW(w, lr=ETA, betas=(0.8, 0.9), weight_decay=DECAY, eps=EPSILON),
    ),
    "rmsprop": (
        OptimizerConfig(
            name="rmsprop",
            learning_rate=ETA,
            momentum=0.9,
            smoothing=0.7,
            weight_decay=DECAY,
            epsilon=EPSILON,
        ),
        lambda w: torch.optim.RMSprop(
            w, lr=ETA, momentum=0.9, alpha=0.7, weight_decay=DECAY, eps=EPSILON
        ),
    ),
}


def facts(config: OptimizerConfig, step: int) -> StepFacts:
    return StepFacts.model_construct(
        step=step, learning_rate=ETA, clip_factor=CLIP, optimizer=config
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_is_torchs_of_the_clipped_gradient(name: str) -> None:
    config, build = OPTIMIZERS[name]
    weight = START.clone().requires_grad_()
    optimizer = build([weight])
    for step, gradient in enumerate(GRADIENTS):
        before = weight.detach().clone()
        state = {key: value.clone() for key, value in optimizer.state.get(weight, {}).items()}
        update = optimizer_map(facts(config, step), before, state, gradient)
        weight.grad = CLIP * gradient
        optimizer.step()
        replayed = -update.scale * gradient + update.history
        torch.testing.assert_close(replayed, weight.detach() - before, rtol=1e-12, atol=1e-14)


def one_number(name: str, state: dict[str, float], step: int) -> OptimizerMap:
    """The map of a weight of 2 with a gradient of 4, clipped to 2."""

    def number(value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float64)

    tensors = {key: number(value) for key, value in state.items()}
    return optimizer_map(facts(OPTIMIZERS[name][0], step), number(2), tensors, number(4))


def test_history_is_what_the_step_does_beside_the_batch_by_hand() -> None:
    sgd = one_number("sgd", {"momentum_buffer": 3.0}, 1)
    assert sgd.scale.item() == pytest.approx(0.1 * 0.5)
    assert sgd.history.item() == pytest.approx(-0.1 * (0.9 * 3 + 0.2 * 2))

    # v' = 0.9 · 5 + 0.1 · 2² = 4.9, corrected by 1 − 0.9² = 0.19; m by 1 − 0.8² = 0.36.
    adamw = one_number("adamw", {"exp_avg": 3.0, "exp_avg_sq": 5.0}, 1)
    rate = 0.1 / 0.36 / ((4.9 / 0.19) ** 0.5 + 0.3)
    assert adamw.scale.item() == pytest.approx(rate * 0.2 * 0.5)
    assert adamw.history.item() == pytest.approx(-0.1 * 0.2 * 2 - rate * 0.8 * 3)

    # u = 2 + 0.2 · 2 = 2.4, v' = 0.7 · 5 + 0.3 · 2.4² = 5.228.
    rmsprop = one_number("rmsprop", {"square_avg": 5.0, "momentum_buffer": 3.0}, 1)
    size = 5.228**0.5 + 0.3
    assert rmsprop.scale.item() == pytest.approx(0.1 * 0.5 / size)
    assert rmsprop.history.item() == pytest.approx(-0.1 * (0.9 * 3 + 0.4 / size))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_has_not_stepped_has_zeros_for_its_state(name: str) -> None:
    zeros = dict.fromkeys(("momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg"), 0.0)
    none, zero = one_number(name, {}, 0), one_number(name, zeros, 0)
    assert torch.equal(none.scale, zero.scale)
    assert torch.equal(none.history, zero.history)


def test_a_part_of_the_gradient_makes_its_part_of_the_update() -> None:
    update = FrozenUpdate({"w": torch.tensor([2.0, 0.5])})
    assert update.along({"w": torch.tensor([3.0, -4.0])})["w"].tolist() == [-6.0, 2.0]


def test_squares_are_of_all_that_is_left_without_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are taken some at a time, and the last ones are fewer."""
    monkeypatch.setattr(optimizers, "CACHED", 4)  # two columns of two parts
    gradient = torch.tensor([3.0, 1.0, -2.0, 4.0, 0.0])
    parts = torch.tensor([[3.0, 0.0, 0.0, 0.0, 5.0], [0.0, 1.0, -2.0, 1.0, 0.0]])
    update_map = optimizer_map(facts(OPTIMIZERS["sgd"][0], 0), gradient, {}, gradient)
    removal = Removal(update_map, linear=True, clip_factor=1.0, slopes=parts[:0])
    assert removal.squares(parts).tolist() == [1 + 4 + 16 + 25, 9 + 9]


def test_an_older_record_has_its_bound_in_the_factor() -> None:
    """torch's: bound / (norm + 1e-6)."""
    facts = StepFacts(
        step=0,
        learning_rate=ETA,
        grad_norm=4.0,
        clip_factor=0.5 / (4.0 + 1e-6),
        optimizer=OPTIMIZERS["sgd"][0],
        objective=DPOConfig(),
    )
    factor = clipping_of(facts).factor(torch.tensor(2.0, dtype=torch.float64))
    assert float(factor) == pytest.approx(0.5 / (2.0 + 1e-6), rel=1e-12)
