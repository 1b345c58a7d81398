"""Builds the probe rows that need no language model, from any preference data."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dynolab.data.probes.kinds import DATA_KINDS, DataKind
from dynolab.data.probes.overlap import bare, disjoint
from dynolab.data.rows import Example, ProbeRow, Split, answer, spaced
from dynolab.errors import ConfigError

MADE_BY: dict[DataKind, str] = {
    "chosen": "the data",
    "rejected": "the data",
    "irr_train": "chosen answer of another training prompt",
    "irr_test": "chosen answer of a prompt outside the training rows",
    "random_permute": "words of the chosen answer, shuffled",
    "random_nonhum": "words of irr_test, shuffled",
}


class Watched(NamedTuple):
    """A pair to make probes of, and its split."""

    example: Example
    split: Split

    def row(self, kind: str, response: str, made_by: str, *flags: str) -> ProbeRow:
        """A probe row of this pair; its response gets the leading space that all kinds have."""
        return ProbeRow(
            pair_id=self.example.id,
            split=self.split,
            kind=kind,
            prompt=self.example.prompt,
            response=answer(response),
            made_by=made_by,
            flags=flags,
        )


def watched_pairs(train: Sequence[Example], fresh: Sequence[Example], pairs: int) -> list[Watched]:
    """The first `pairs` training rows and the first `pairs` held-out rows."""
    return [
        *(Watched(example, "train") for example in train[:pairs]),
        *(Watched(example, "heldout") for example in fresh[:pairs]),
    ]


def build_probes(
    train: Sequence[Example], heldout: Sequence[Example], *, pairs: int, seed: int
) -> list[ProbeRow]:
    """Builds probe rows of the first `pairs` training and the first `pairs` held-out examples.

    Makes all kinds of `rows_from_data`, without held-out examples that occur in the training rows.
    See there for arguments and errors.
    """
    fresh = disjoint(heldout, train)
    watched = watched_pairs(train, fresh, pairs)
    return rows_from_data(watched, train, fresh, kinds=DATA_KINDS, seed=seed)


def rows_from_data(
    watched: Sequence[Watched],
    train: Sequence[Example],
    fresh: Sequence[Example],
    *,
    kinds: Sequence[DataKind],
    seed: int,
) -> list[ProbeRow]:
    """Builds probe rows of some kinds, pair by pair (Ren & Sutherland, arXiv 2407.10490, §4).

    A row's random draw depends on its pair, its kind and the seed alone. A pair without a rejected
    answer gets no `rejected` row.

    **Arguments:**

    - `train`: all rows that training will see, not a subset.
    - `fresh`: rows whose prompt and answers do not occur in `train` (`disjoint`), so that an
      `irr_test` is sure to be irrelevant and untrained.

    **Raises:** `ConfigError` if there are fewer than two examples to draw a kind from.
    """
    for name, rows, drawn in (
        ("training rows", train, {"irr_train"}),
        ("held-out rows disjoint from training", fresh, {"irr_test", "random_nonhum"}),
    ):
        if len(rows) < 2 and drawn & set(kinds):
            raise ConfigError(
                name,
                len(rows),
                "irr_train and irr_test need at least two; give more rows, or hold out more "
                "(data.heldout_rows)",
            )
    makers = _makers(train, fresh, seed)
    return [
        pair.row(kind, text, MADE_BY[kind])
        for pair in watched
        for kind in kinds
        if (text := makers[kind](pair)) is not None
    ]


def other(examples: Sequence[Example], than: Example, rng: random.Random) -> Example:
    """A random example with another prompt and another chosen answer, which is not empty."""
    start = rng.randrange(len(examples))
    for step in range(len(examples)):
        row = examples[(start + step) % len(examples)]
        differs = bare(row.prompt) != bare(than.prompt) and bare(row.chosen) != bare(than.chosen)
        if differs and row.chosen.strip():
            return row
    raise ConfigError(
        "data", than.id, "every row has this row's prompt or answer; give rows that differ"
    )


def shuffled(text: str, rng: random.Random) -> str:
    """The words of a text in a random order, different from the original if there is one."""
    words = text.split()
    order = words[:]
    if len(set(words)) > 1:
        while order == words:
            rng.shuffle(order)
    return spaced(" ".join(order))


def _makers(
    train: Sequence[Example], fresh: Sequence[Example], seed: int
) -> dict[DataKind, Callable[[Watched], str | None]]:
    def rng(watched: Watched, kind: str) -> random.Random:
        return random.Random(f"{seed}/probes/{watched.split}/{watched.example.id}/{kind}")

    def unseen(watched: Watched) -> str:
        return other(fresh, watched.example, rng(watched, "irr_test")).chosen

    return {
        "chosen": lambda watched: watched.example.chosen,
        "rejected": lambda watched: watched.example.rejected,
        "irr_train": lambda watched: (
            other(train, watched.example, rng(watched, "irr_train")).chosen
        ),
        "irr_test": unseen,
        "random_permute": lambda watched: shuffled(
            watched.example.chosen, rng(watched, "random_permute")
        ),
        "random_nonhum": lambda watched: shuffled(unseen(watched), rng(watched, "random_nonhum")),
    }
