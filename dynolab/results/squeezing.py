"""The rows of squeezing: where risen probability went, what was foretold of it, what repeats."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from dynolab.data.rows import Row, Split
from dynolab.results.study import ObjectiveName

Side = Literal["chosen", "rejected"]


class RisenMass(Row):
    """Where the probability went that rose between two policies on one teacher-forced answer.

    Sums over the answer's positions, in units of probability: `risen` = Σ_l Σ_i (Δπ_i)₊, and of
    it `argmax`, the part that the token took which the policy before found likeliest, and
    `own`, the part that the answer's own token took (within `argmax` where both are one token).
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
    """How the first-order rule foretold one recorded step on one side's own tokens.

    At every position of the answers that the step trained on, every other token of the vocabulary
    is foretold to rise or to fall. `foretold` and `rose` count those that were foretold to rise
    and that did, `right` those of all `tokens` that did as foretold. `auc`: how probably a token
    that rose had the higher forecast than one that fell; `auc_top`: among the likeliest few of
    every position; `auc_last_layer`: where the forecast is what the head's own change makes of all
    logits, features standing still.

    `explained` = 1 − Σ(Δ − Δ_head)²/Σ Δ² over the answers' tokens, where Δ is the realised change
    of log π and Δ_head what the head's own change makes of it while features stand still;
    `cosine` of both, and the share `agree` of tokens on whose sign they agree.
    """

    # Not-a-number where there is nothing to compare, as where the head does not move.
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


class Repetition(Row):
    """How much one generation repeats itself, in tokens, end-of-sequence left out.

    `distinct_1`, `_2`, `_3`: different n-grams over all n-grams, 1 where there is none;
    `longest_repeat`: length of the longest run of tokens that stands in it twice; `entropy` of its
    token frequencies, nats. `repeater`: that run is a third of it or more, and it no short answer.
    """

    tokens: int
    distinct_1: float
    distinct_2: float
    distinct_3: float
    longest_repeat: int
    entropy: float
    repeater: bool


class Generation(Repetition):
    """A repetition with the model and the prompt that it is of; `finished`: it ended itself."""

    model: str
    pair_id: str
    split: Split
    finished: bool
