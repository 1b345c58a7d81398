"""Forces on the GPU: maps by each route, recorded steps, accounts of trainings, kernels, audits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from dynolab.audit.audit import audit_pairs
from dynolab.data.encode import Encoder
from dynolab.forces import (
    PolicyFunction,
    breakdown,
    build_token_map,
    feature_forces,
    feature_step,
    force_map,
    kernel_blocks,
    kernel_sizes,
    second_order,
    split_step,
    step_forces,
    step_layers,
    step_validity,
)
from dynolab.forces.function.views import View
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.metagradient import Metagradient
from dynolab.forces.step.second_order import bending_by_block
from dynolab.forces.step.token_map import example_pushes
from dynolab.squeezing.forecast import forecasts
from dynolab.squeezing.ladder import ladder
from dynolab.squeezing.pushes import pushes
from dynolab.training.step_record import StepRecord
from tests.forces.families import DPO_LOSS, FAMILIES, OBSERVED, ROUTES, Case, build
from tests.forces.lora import adapted
from tests.forces.small_models import (
    ADAMW,
    Letters,
    direction,
    encoded,
    neox,
    pairs,
    recorded,
    with_reference,
)
from tests.forces.test_ledger import FUNCTIONALS, OPTIMIZERS, trained
from tests.forces.test_step_forces import PROBES, Numbers

ENCODER = Encoder(Numbers(), 32, "drop")


def policy_of(family: str = "gpt_neox", dtype: torch.dtype = torch.float64) -> PolicyFunction:
    return PolicyFunction(build(family, dtype).to("cuda"), dtype)


def map_by(route: str, folder: Path, *, family: str = "llama_tied", **more: Any) -> None:
    examples = with_reference(build(family), pairs(2))
    case = Case(policy_of(family), examples)
    assert case.map(route=route, **more).norm() > 0


def map_of_adapters(_: Path) -> None:
    model = adapted("llama_tied")
    examples = with_reference(model, pairs(2))
    policy = PolicyFunction(model.to("cuda"), torch.float64)
    assert Case(policy, examples).map(route="rows").norm() > 0


def map_on_disk(folder: Path) -> None:
    examples = with_reference(build("llama_tied"), pairs(2))
    policy = policy_of("llama_tied")
    observed = [encoded(seed) for seed in range(3)]
    more = {"folder": folder / "map", "memory_bytes": 2**19}
    assert force_map(policy, observed, examples, DPO_LOSS, route="both_sides", **more).force.size


def break_down(family: str, _: Path) -> None:
    examples = with_reference(build(family), pairs(2))
    parts = breakdown(policy_of(family), OBSERVED, examples, DPO_LOSS, update=0.1)
    assert parts.shares() and parts.projections() and parts.last_layer()


def change_along(_: Path) -> None:
    policy = policy_of()
    batch, _ = policy.batch([encoded(0), encoded(1)])
    steps = [direction(neox(), 0.02, seed) for seed in range(3)]
    changes = policy.change_along(policy.weights, [policy.cast(step) for step in steps], batch)
    assert changes.shape == (3, len(batch.token))


def bend(_: Path) -> None:
    policy = policy_of()
    batch, _ = policy.batch([encoded(0), encoded(1)])
    change = policy.cast(direction(neox(), 0.02))
    view = View.realised(batch)
    second_order(policy, policy.weights, change, batch, view)
    weights = torch.ones_like(view.tokens, dtype=torch.float64)
    assert bending_by_block(policy, policy.weights, change, batch, view, weights)


@cache
def record() -> StepRecord:
    return recorded(neox(), ADAMW, count=3)


def on_a_step(measure: Callable[[StepRecord, PolicyFunction], Any], _: Path) -> None:
    measure(record(), policy_of())


def token_map(step: StepRecord, policy: PolicyFunction) -> None:
    build_token_map(
        step,
        policy,
        Letters(),
        stage="dpo",
        updating_id="pair-1",
        observed_id="other",
        observed=encoded(77),
    )
    example_pushes(step, policy, split_step(step, policy).update, encoded(77))


def feature(step: StepRecord, policy: PolicyFunction) -> None:
    examples = with_reference(neox(), pairs(2))
    feature_forces(policy, examples, DPO_LOSS, 1)
    batch, _ = policy.batch(OBSERVED)
    feature_step(policy, policy.cast(step.before), policy.cast(step.after), batch, 1)


ON_A_STEP: dict[str, Callable[[StepRecord, PolicyFunction], Any]] = {
    "split": split_step,
    "step forces": partial(step_forces, probes=PROBES, encoder=ENCODER, stage="dpo"),
    "step layers": partial(step_layers, probes=PROBES, encoder=ENCODER, stage="dpo"),
    "step validity": partial(step_validity, probes=PROBES, encoder=ENCODER, stage="dpo"),
    "token map": token_map,
    "features": feature,
    "forecasts": partial(forecasts, training="dpo"),
    "ladder": partial(ladder, training="dpo"),
}


def account(optimizer: str, _: Path) -> None:
    ledger = Ledger(policy_of(), FUNCTIONALS)
    for step in reversed(trained(OPTIMIZERS[optimizer], steps=3)):
        ledger.enter(step)


def differentiate_training(_: Path) -> None:
    backwards = Metagradient(policy_of(), FUNCTIONALS)
    for step in reversed(trained(OPTIMIZERS["sgd"], steps=3)):
        backwards.enter(step)


def kernel(_: Path) -> None:
    policy = policy_of()
    kernel_sizes(policy, [encoded(1, 4, 3)], [encoded(3, 4, 3)])
    kernel_blocks(policy, encoded(1, 4, 2), encoded(2, 2, 2))


def audit(_: Path) -> None:
    everyone = [pair.encoded() for pair in pairs(4)]
    assert audit_pairs(policy_of("llama_tied"), everyone[:3], DPO_LOSS, heldout=everyone[3:])


def push(_: Path) -> None:
    assert list(pushes(policy_of(), [pair.encoded() for pair in pairs(1)], 0.01))


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    for route in ROUTES:
        yield f"map by {route}", partial(map_by, route)
    for family in FAMILIES:
        yield f"map of {family}", partial(map_by, "both_sides", family=family)
    yield "map of adapters", map_of_adapters
    yield "map on disk", map_on_disk
    for family in ("gpt_neox", "llama_tied"):
        yield f"breakdown of {family}", partial(break_down, family)
    yield "change along directions", change_along
    yield "second order", bend
    for name, measure in ON_A_STEP.items():
        yield name, partial(on_a_step, measure)
    for optimizer in OPTIMIZERS:
        yield f"ledger of {optimizer}", partial(account, optimizer)
    yield "metagradient", differentiate_training
    yield "kernel", kernel
    yield "audit", audit
    yield "pushes", push
