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
"""Most layers, evenly spaced, and most examples of the step: each pair of them takes a backward
pass."""


def step_layers(
    record: StepRecord,
    policy: PolicyFunction,
    probes: Sequence[ProbeRow],
    encoder: Encoder,
    *,
    stage: str,
    batch_tokens: int = 2_048,
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
        for members in by_length(answers, batch_tokens)
    ]
    objective = build_objective(record.facts.objective)
    rows = []
    for layer in layers:
        forces = feature_forces(
            policy,
            record.examples[:EXAMPLES],
            objective,
            layer,
            at=record.before,
            step=record.examples,
        )
        pulls = torch.stack([own.total for own in forces]).double()
        steps = [feature_step(policy, record.before, record.after, own, layer) for own in batches]
        measured = torch.cat([own.measured for own in steps]).double()
        residual = torch.cat([own.residual for own in steps]).double()
        start = torch.cat([own.start for own in steps]).double()
        several = int(pulls.any(dim=1).sum()) > 1
        moved = measured.square().sum()
        rows.append(
            LayerForce(
                stage=stage,
                step=record.facts.step,
                layer=layer,
                layers=blocks,
                examples=len(forces),
                force=float(pulls.norm(dim=1).mean()),
                resultant=consistency(pulls).resultant if several else math.nan,
                moved=float((moved / start.square().sum()).sqrt()),
                unexplained=float(residual.square().sum() / moved),
            )
        )
    return rows
