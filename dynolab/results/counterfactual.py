"""Trainings without some examples, beside what a ledger says that these did."""

from __future__ import annotations

from dynolab.data.rows import Row


class Dropped(Row):
    """A group of examples that a training went without.

    `answer`: the single answer for whose fall the ledger blames them; None for a random group.
    """

    name: str
    examples: tuple[str, ...]
    answer: str | None = None


class Effect(Row):
    """What dropping a group did to a functional, in nats: `effects.jsonl`.

    `predicted`: minus the group's lines in the ledger. `measured`: the functional after the
    training without the group, less that after the same training with it.
    """

    group: str
    functional: str
    predicted: float
    measured: float


class Agreement(Row):
    """How well a ledger predicts retrainings: `agreement.json`.

    - `lds`: mean over functionals of the rank correlation, over random groups, of predicted with
      measured effects (the linear datamodeling score; Park et al., arXiv 2303.14186), with the 95 %
      interval of a bootstrap over groups.
    - `same_sign`: share of the blamed groups whose removal moved their answer as predicted, with a
      95 % interval.
    """

    groups: int
    lds: float
    lds_low: float
    lds_high: float
    blamed: int
    same_sign: float
    same_sign_low: float
    same_sign_high: float
