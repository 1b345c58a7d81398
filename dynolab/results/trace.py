"""Rows of a trace: which training rows moved a behaviour, and what training without them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dynolab.data.rows import Row, Split

Choice = Literal["lines", "words", "random"]
"""How rows are chosen: by their lines, by the words they share with the behaviour, at random."""


class BehaviourRow(Row):
    """A prompt with a continuation that shows the behaviour, and one that does not."""

    prompt: str
    unwanted: str
    wanted: str


class TracedRow(Row):
    """What a training row did to `log π(unwanted) − log π(wanted)`, a mean over prompts, in nats.

    `nats`: over the prompts that rows are ranked by; `nats_heldout`: over the others. `words`: how
    much more of its words the row shares with unwanted than with wanted continuations. `random`: a
    number of the row's id.
    """

    id: str
    nats: float
    nats_heldout: float
    words: float
    random: float


class TraceSummary(Row):
    """The training as it was: `start` and `end` of the contrast by split, in nats.

    `agreement`: rank correlation of the rows' lines to the two halves of the prompts, and `words`:
    of the shared words with the lines to the held-out half; 0 where all rows are alike.
    """

    start: Mapping[Split, float]
    end: Mapping[Split, float]
    agreement: float
    words: float


class TracedModel(Row):
    """A model's behaviour: `contrast`, one number a prompt, and `rate`, a rule's mean reward of its
    own answers to each prompt; prompts in the file's order."""

    contrast: tuple[float, ...]
    rate: tuple[float, ...] = ()
