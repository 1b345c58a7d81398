"""Trainings without some examples, beside what a ledger says that these did."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row


class Dropped(Row):
    """A group of examples that a training went without.

    `answer`: the single answer for whose fall they are blamed, by `blamed_by`: the ledger, or the
    words that they share with it (`experiments.counterfactual.words`); None for a random group.
    """

    name: str
    examples: tuple[str, ...]
    answer: str | None = None
    blamed_by: Literal["ledger", "words"] = "ledger"

    @property
    def blamed(self) -> bool:
        """Whether the ledger blames them."""
        return self.answer is not None and self.blamed_by == "ledger"


Estimate = Literal["ledger", "metagradient", "another order", "words", "random"]
"""What an example is said to have done: its lines in the ledger; the derivative of the training's
end by its weight in all steps (`dynolab.forces.ledger.metagradient`); the words that it shares with
the answers; or a random number. `another order`: what the same removal did to a training that had
the examples in another order, which bounds estimates that do not know the order."""

IN_NATS = ("ledger", "metagradient", "another order")
"""The estimates whose size says something, too."""


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
    """How well an estimate predicts retrainings: `agreement.jsonl`; None where it cannot be said.

    - `lds`: mean over functionals of the rank correlation, over random groups, of predicted with
      measured effects (the linear datamodeling score; Park et al., arXiv 2303.14186), with the 95 %
      interval of a bootstrap over groups.
    - `of_ceiling`: `lds` over the LDS of `another order`; None without one.
    - `error`: `‖predicted − measured‖ / ‖measured‖` over all effects of random groups; None of an
      estimate that is not in nats.
    - `same_sign`: share of the blamed groups whose removal moved their answer as predicted, over
      `seeds` training seeds, with a 95 % interval in which an answer counts once; None of an
      estimate without a forecast for them.
    """

    estimate: Estimate
    groups: int
    lds: float | None
    lds_low: float | None
    lds_high: float | None
    of_ceiling: float | None
    error: float | None
    blamed: int
    seeds: int
    same_sign: float | None
    same_sign_low: float | None
    same_sign_high: float | None
