"""Trainings without some examples, beside what a ledger says that these did."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row


class Dropped(Row):
    """A group of examples that a training went without.

    `answer`: the single answer for whose fall the ledger blames them; None for a random group.
    """

    name: str
    examples: tuple[str, ...]
    answer: str | None = None


Estimate = Literal["ledger", "metagradient"]
"""What an example is said to have done: its lines in the ledger, or the derivative of the
training's end by its weight in all steps (`dynolab.forces.ledger.metagradient`)."""


class ExampleDerivative(Row):
    """`∂q(θ_T)/∂w`, w the weight of an example in all steps, in nats: `derivatives.jsonl`."""

    example: str
    functional: str
    nats: float


class Effect(Row):
    """What dropping a group did to a functional, in nats: `effects.jsonl`.

    `predicted`: minus what an estimate says of the group's examples. `measured`: the functional
    after the training without the group, less that after the same training with it.
    """

    group: str
    functional: str
    estimate: Estimate
    predicted: float
    measured: float


class Repeat(Row):
    """What dropping a blamed group did to its answer under one training seed: `repeats.jsonl`.

    `measured`: in nats, as in `Effect`; the first seed is the ledger's own training's.
    """

    group: str
    functional: str
    seed: int
    measured: float


class Agreement(Row):
    """How well an estimate predicts retrainings: `agreement.jsonl`.

    - `lds`: mean over functionals of the rank correlation, over random groups, of predicted with
      measured effects (the linear datamodeling score; Park et al., arXiv 2303.14186), with the 95 %
      interval of a bootstrap over groups.
    - `error`: `‖predicted − measured‖ / ‖measured‖` over all effects of random groups.
    - `same_sign`: share of the blamed groups whose removal moved their answer as predicted, over
      `seeds` training seeds, with a 95 % interval in which an answer counts once.
    """

    estimate: Estimate
    groups: int
    lds: float
    lds_low: float
    lds_high: float
    error: float
    blamed: int
    seeds: int
    same_sign: float
    same_sign_low: float
    same_sign_high: float
