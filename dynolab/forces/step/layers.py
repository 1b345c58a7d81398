"""Measures a recorded step at the layers of the network: its forces on features, and Δh."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dynolab.data.batches import by_length
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.forces.features import consistency, feature_forces, feature_step
from dynolab.forces.function.layers import blocks_of
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.step.watch import encode_probes
from dynolab.objectives import build_objective
from dynolab.results.forces import LayerForce
from dynolab.training.step_record import StepRecord

LAYERS, EXAMPLES = 8, 8
"""Most layers, evenly spaced, and most examples of the step."""


def step_layers(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int | None = None,
) -> list[LayerForce]:
    """Energy and direction of a step's forces on features, and predicted against measured Δh.

    `feature_forces` of the step's first examples at the weights before it; `feature_step` at the
    midpoint, over the response positions of the watched answers.

    **Arguments:** as of `step_forces`.

    **Returns:** one row a layer; none for a model whose base has no list of its blocks.

    **Raises:** `ConfigError` for a model without forward derivatives.
    """
    modules = blocks_of(policy.causal)
    if modules is None:
        return []
    blocks = len(modules)
    layers = sorted({round(float(at)) for at in torch.linspace(0, blocks, min(LAYERS, blocks + 1))})
    answers = [answer for _, answer in encode_probes(probes, encoder)]
    batches = [
        policy.batch([answers[member] for member in members])
        for members in by_length(answers, batch_tokens or policy.batch_tokens)
    ]
    forces = feature_forces(
        policy,
        record.examples[:EXAMPLES],
        build_objective(record.facts.objective),
        layers,
        at=record.before,
        step=record.examples,
        batch_tokens=batch_tokens,
    )
    pulls = torch.stack([own.total for own in forces], 1).double()
    steps = [feature_step(policy, record.before, record.after, own, layers) for own in batches]
    measured, residual, start = (
        torch.cat([getattr(own, name) for own in steps], 1).double()
        for name in ("measured", "residual", "start")
    )
    moved = measured.square().sum((1, 2))
    several = int(pulls[0].any(dim=1).sum()) > 1
    return [
        LayerForce(
            stage=stage,
            step=record.facts.step,
            layer=layer,
            layers=blocks,
            examples=len(forces),
            force=float(pulls[place].norm(dim=1).mean()),
            resultant=consistency(pulls[place]).resultant if several else math.nan,
            moved=float((moved[place] / start[place].square().sum()).sqrt()),
            unexplained=float(residual[place].square().sum() / moved[place]),
        )
        for place, layer in enumerate(layers)
    ]
