"""What a run did to an answer, summed over its steps: its forces, and the paper's ratios."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.data.rows import Split
from dynolab.errors import ConfigError
from dynolab.forces.map.terms import TokenTerms
from dynolab.results.study import ARGMAX, ForceRow, ProbeScore

PARTS = ("measured", "predicted", "from_chosen", "from_rejected", "from_history", "residual")


@dataclass(frozen=True)
class Influence:
    """Forces of the recorded steps on one answer, summed up to each of them, in nats.

    `sums[part][t]` is the sum over the recorded steps up to `steps[t]`, for every part of
    `PARTS`. Forces of steps that were not recorded are missing; `steps_covered` and
    `change_covered` are the share of the run that is covered.

    - `run_steps`, `run_change`: optimizer steps and change of the answer's log π from its first
      probe to its last, None if it was not probed twice. y* has no `run_change`: its tokens
      are chosen anew at every step.
    """

    pair_id: str
    split: Split
    kind: str
    steps: tuple[int, ...]
    sums: dict[str, list[float]]
    run_steps: int | None
    run_change: float | None
    steps_in_run: int
    measured_in_run: float

    @property
    def steps_covered(self) -> float | None:
        """Recorded steps as a share of the run's."""
        return self.steps_in_run / self.run_steps if self.run_steps else None

    @property
    def change_covered(self) -> float | None:
        """The recorded steps' measured change as a share of the run's.

        It may be negative or above one: unrecorded steps can undo what recorded ones did.
        """
        return self.measured_in_run / self.run_change if self.run_change else None


def accumulated_influence(
    rows: Iterable[ForceRow], probes: Iterable[ProbeScore] = ()
) -> list[Influence]:
    """`Σ_t` of the first-order forces of a run's recorded steps, answer by answer.

    **Arguments:**

    - `rows`: force rows of one stage, as `step_forces` makes them, in any order.
    - `probes`: the stage's probe scores, which hold the answers' actual changes.

    **Raises:** `ConfigError` for rows of several stages, or of one step twice.
    """
    rows = list(rows)
    stages = sorted({row.stage for row in rows})
    if len(stages) > 1:
        raise ConfigError("rows", stages, "sum one stage at a time: stages share step numbers")
    answers: dict[tuple[Split, str, str], list[ForceRow]] = {}
    for row in rows:
        answers.setdefault((row.split, row.pair_id, row.kind), []).append(row)
    paths: dict[tuple[Split, str, str], list[ProbeScore]] = {}
    for score in probes:
        paths.setdefault((score.split, score.pair_id, score.kind), []).append(score)
    return [_influence(members, paths.get(key, [])) for key, members in answers.items()]


def _influence(rows: Sequence[ForceRow], path: Sequence[ProbeScore]) -> Influence:
    rows = sorted(rows, key=lambda row: row.step)
    steps, first = tuple(row.step for row in rows), rows[0]
    if len(set(steps)) < len(steps):
        raise ConfigError(
            f"steps of {first.kind} answer {first.pair_id}",
            steps,
            "a step appears twice; give the rows of one run",
        )
    path = sorted(path, key=lambda score: score.step)
    probed = first.kind != ARGMAX and len(path) > 1 and path[-1].step > path[0].step
    inside = [row for row in rows if probed and path[0].step <= row.step < path[-1].step]
    return Influence(
        pair_id=first.pair_id,
        split=first.split,
        kind=first.kind,
        steps=steps,
        sums={part: list(accumulate(getattr(row, part) for row in rows)) for part in PARTS},
        run_steps=path[-1].step - path[0].step if probed else None,
        run_change=path[-1].logp - path[0].logp if probed else None,
        steps_in_run=len(inside),
        measured_in_run=sum(row.measured for row in inside),
    )


def kernel_lower_bound(
    change: Float[Tensor, " tokens"],
    observed: TokenTerms,
    updating: Sequence[TokenTerms],
    learning_rate: float,
) -> Float[Tensor, " tokens"]:
    """`|Δ log π_y| / (η ‖e_y − π_o‖ ‖G‖) ≤ ‖K‖₂`, one bound per observed token.

    From `Δ log π_m = −η Σ_l (e − π_m)ᵀ K_{m,l} G_l` and Cauchy–Schwarz, with ‖G‖ over all
    updating tokens and K the row of blocks [K_{m,1} … K_{m,L}]. It holds for the first-order
    change of one gradient step; for a measured change up to the step's residual, and under clip
    factor, momentum or an adaptive optimizer only if K includes them.

    **Arguments:**

    - `change`: Δ log π of one response's tokens, in nats.
    - `observed`, `updating`: terms before the step, of that response and of all that the step
      trained on (`response_terms`, `step_terms`).
    - `learning_rate`: η of the step.
    """
    g = torch.cat([terms.g_norm for terms in updating]).norm()
    size = learning_rate * observed.force_size * g
    # Without a force the bound is zero.
    return torch.where(size > 0, change.abs() / size, torch.zeros_like(size))


@dataclass(frozen=True)
class PaperInfluence:
    """The authors' LBK and SignDelta of one answer over steps, under their own names.

    Neither bounds anything as written: ‖A‖ belongs to all the logits' change and is under a
    root, η is missing, and norms are means over tokens. `kernel_lower_bound` is a bound.
    """

    lbk: Float[Tensor, " steps"]
    sign_delta: Float[Tensor, " steps"]

    @property
    def accumulated(self) -> Float[Tensor, " steps"]:
        """Running sum of SignDelta's moving average (EMA 0.9), their accumulated influence."""
        return moving_average(self.sign_delta).cumsum(0)


def paper_influence(
    changes: Sequence[Float[Tensor, " tokens"]],
    observed: Sequence[TokenTerms],
    updating: Sequence[Sequence[TokenTerms]],
) -> PaperInfluence:
    """LBK `‖Δ log π‖₂/(√‖A‖·‖p−e‖)` and SignDelta `mean(Δ)/(√‖A‖·‖p−e‖)`, step by step.

    Ren & Sutherland (arXiv 2407.10490). The source leaves two choices open: here ‖A‖ is the mean
    over the answer's tokens of the exact ‖A‖_F, ‖p−e‖ the mean over the updating tokens of
    ‖π − e_y‖.

    **Arguments:** one entry per step in each:

    - `changes`: Δ log π of the answer's tokens over the step, in nats.
    - `observed`: terms of the answer before the step.
    - `updating`: terms of all responses that the step trained on.
    """
    lbk, sign_delta = [], []
    for change, own, others in zip(changes, observed, updating, strict=True):
        pull = torch.cat([terms.force_size for terms in others]).mean()
        size = own.a_frobenius.mean().sqrt() * pull
        lbk.append(change.norm() / size)
        sign_delta.append(change.mean() / size)
    return PaperInfluence(torch.stack(lbk), torch.stack(sign_delta))


def moving_average(values: Float[Tensor, " steps"], decay: float = 0.9) -> Float[Tensor, " steps"]:
    """`a_t = decay · a_{t−1} + (1 − decay) · v_t`, from a_0 = v_0."""
    averages = accumulate(values, lambda a, v: decay * a + (1 - decay) * v)
    return torch.stack(list(averages))
