"""The rows of pushes on a language model's answers: what moved, and which picture explains it."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row
from dynolab.results.forces import Measured

Answer = Literal["rejected", "chosen"]
Picture = Literal["own_token", "last_layer", "first_order"]


class PairPush(Row):
    """Effect of a push on a pair's rejected answer at the positions of one of its answers.

    Counts of positions: `label_fell`, where the answer's own token became less likely, and
    `best_rose`, where the likeliest other token became likelier. `step` is the size of the gradient
    step. `pushes.jsonl`.
    """

    pair_id: str
    answer: Answer
    step: float
    tokens: int
    label_fell: int
    best_rose: int


class LeftOver(Measured):
    """Share of Σ(Δ log π)² over the whole vocabulary that a picture leaves unexplained.

    With the jackknife's 95% interval over pairs: `explained.jsonl`.
    """

    answer: Answer
    picture: Picture
    left: float
    low: float
    high: float
    pairs: int


class RankChange(Measured):
    """Mean Δ log π in nats of the tokens of some ranks before the push: `ranks.jsonl`.

    Ranks are those among all tokens but the answer's own, 1 the likeliest; `first` = 0 is the
    answer's own token. `own_token` is NaN if the push was on another answer.
    """

    answer: Answer
    first: int
    last: int
    measured: float
    own_token: float
    last_layer: float
    first_order: float
