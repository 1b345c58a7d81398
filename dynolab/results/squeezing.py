"""The rows of squeezing: where risen probability went, how it was forecast, and repetition."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from dynolab.data.rows import Row, Split
from dynolab.results.study import ObjectiveName

Side = Literal["chosen", "rejected"]


class RisenMass(Row):
    """Which tokens gained probability between two policies on one teacher-forced answer.

    Sums over the answer's positions, in units of probability: `risen` = Σ_l Σ_i (Δπ_i)₊; of that,
    `argmax` is the part of the token that was likeliest under the policy before, and `own` the part
    of the answer's own token (counted in both where they are the same token).
    """

    training: ObjectiveName
    step: int
    pair_id: str
    split: Split
    kind: str
    tokens: int
    risen: float
    argmax: float
    own: float


class Forecast(Row):
    """How well the first-order rule predicted one recorded step at one side's positions.

    At every position of the answers that the step trained on, every token but the answer's own is
    predicted to rise or to fall. Of these `tokens`, `foretold` were predicted to rise, `rose` rose,
    and `right` moved as predicted. `auc`: probability that a token that rose had a higher forecast
    than one that fell; `auc_top`: the same among the likeliest few of every position;
    `auc_last_layer`: the same, with the effect of the head's own change at fixed features as
    forecast.

    `explained` = 1 − Σ(Δ − Δ_head)²/Σ Δ² over the answers' tokens, where Δ is the realised change
    of log π and Δ_head the effect of the head's own change at fixed features; `cosine`: of the two;
    `agree`: share of tokens on which their signs agree.
    """

    # NaN where there is nothing to compare, for example if the head does not move.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    training: ObjectiveName
    step: int
    side: Side
    positions: int
    tokens: int
    foretold: int
    rose: int
    right: int
    auc: float
    auc_top: float
    auc_last_layer: float
    explained: float
    cosine: float
    agree: float


Rung = Literal["logits", "own_token", "head", "table", "weights", "batch"]
"""How much of first order a forecast keeps (`dynolab.squeezing.ladder`)."""


class LadderRung(Row):
    """A rung's forecast of a recorded step, at some of one side's positions: `ladder.jsonl`.

    Over all tokens but each position's own: `auc`, the probability that a token that rose had a
    higher forecast than one that fell, and `right`, the share whose sign was foretold. `flow`: the
    forecast change of probability of the likeliest other token, its mean over positions, in
    units of probability; `flow_measured`: the realised one.
    """

    model_config = ConfigDict(ser_json_inf_nan="constants")

    training: ObjectiveName
    step: int
    side: Side
    rung: Rung
    positions: int
    auc: float
    right: float
    flow: float
    flow_measured: float


class Repetition(Row):
    """How much one generation repeats itself, in tokens, end-of-sequence left out.

    `distinct_1`, `_2`, `_3`: different n-grams over all n-grams, 1 where there is none;
    `longest_repeat`: length of the longest run of tokens that occurs twice; `entropy` of its token
    frequencies, nats. `repeater`: that run is a third or more of a generation that is not short.
    """

    tokens: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    longest_repeat: int
    entropy: float
    repeater: bool


class Generation(Repetition):
    """The repetition of a model's answer to a prompt; `finished`: it ended with end-of-sequence."""

    model: str
    pair_id: str
    split: Split
    finished: bool
