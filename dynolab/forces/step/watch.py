"""Batches watched answers, and beside each chosen one the model's likeliest tokens y*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.batches import TokenBatch
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.results.study import ARGMAX


@dataclass(frozen=True)
class Watched:
    """A batch of answers; y* of each chosen one is a further answer on the same sequence.

    Answer a is of kind `kind[a]` and belongs to row `row[a]`. `view` holds the realised token and
    y* of every position, `start` their log π before the step.
    """

    batch: TokenBatch
    view: View
    row: list[int]
    kind: list[str]
    start: Float[Tensor, "tokens 2"]

    def change(self, policy: PolicyFunction, weights: Weights) -> Float[Tensor, "tokens 2"]:
        """log π at some weights, minus `start`."""
        after = policy.observed(weights, self.batch, self.view, forward_mode=False)
        return after - self.start

    def sums(self, values: Float[Tensor, "tokens 2"]) -> Float[Tensor, " answers"]:
        """Each answer's sum of a value of the view's tokens."""
        realised, best = (self.batch.sequence_sum(column) for column in values.double().unbind(1))
        chosen = self.row[len(realised) :]
        return torch.cat([realised, best[chosen]])


def encode_probes(probes: Sequence[ProbeRow], encoder: Encoder) -> list[tuple[ProbeRow, Encoded]]:
    """Encodes the rows; leaves out those that the encoder's overlong rule drops.

    The encoder's counts do not change. **Raises** `ConfigError` if no row is left.
    """
    own = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
    encoded = zip(probes, own.probes(probes), strict=True)
    kept = [(row, answer) for row, answer in encoded if answer is not None]
    if not kept:
        raise ConfigError("probes", 0, "no probe row is left to watch; give rows that fit")
    return kept


@torch.no_grad()
def watch(
    rows: Sequence[tuple[ProbeRow, Encoded]], before: Weights, policy: PolicyFunction
) -> Watched:
    """The batch of some rows, their log π and their argmax tokens at the weights before a step."""
    batch = policy.batch([answer for _, answer in rows])
    logits = policy.logits(policy.cast(before), batch, forward_mode=False)
    view = View.realised(batch).beside(View.argmax(logits))
    kinds = [probe.kind for probe, _ in rows]
    chosen = [number for number, kind in enumerate(kinds) if kind == "chosen"]
    return Watched(
        batch=batch,
        view=view,
        row=[*range(len(rows)), *chosen],
        kind=[*kinds, *[ARGMAX] * len(chosen)],
        start=view.logps(logits),
    )
