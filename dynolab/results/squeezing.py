"""The rows of squeezing: where risen probability went, and repetition."""

from __future__ import annotations

from dynolab.data.rows import Row, Split
from dynolab.results.study import ObjectiveName


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
